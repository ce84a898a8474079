"""Conversion of obstore's errors to ours, by their class where it says enough, or by their text.

A class says the status of a request for one object, if it is 401, 403, 404, 409 or 412. All other
failures are a GenericError without attributes, and so are all of lists; and the code and the region
in an answer are in no class. These are in Rust's debug text, so the version of obstore is pinned.
Only the status, the code and the region get into our messages: the text holds URLs, which may be
signed.
"""

from __future__ import annotations

import errno
import os
import re

from obstore import exceptions

from ...contract.errors import ObjectReplacedError
from . import hub
from .proxies import proxy_of

NO_CREDENTIALS = (
    "no credentials were found; set them in the environment, or in the configuration of the "
    "store's own tools; for public objects, use the option anonymous=True"
)
FORKED = (
    "objects were requested before this process was forked, so reads would hang; start processes "
    "by 'spawn' or 'forkserver', not by 'fork'"
)

_CLASSES: dict[type[BaseException], int] = {
    exceptions.UnauthenticatedError: 401,
    exceptions.PermissionDeniedError: 403,
    FileNotFoundError: 404,
    exceptions.AlreadyExistsError: 409,
    exceptions.PreconditionError: 412,
}
"""Statuses by the class of the error."""

_TRANSIENT = 408, 425, 429, 500, 502, 503, 504  # statuses; the same request may succeed later
_AGAIN = "list it again: create a new reader, or rebuild the index"
_PROXY = "check its URL, the network and the proxies"
_ON_THE_WAY = "check the server and its proxies"
_PLAIN = "turn off compression in the server or proxy"
_KEYS = "check the credentials and their permissions"

_CODES = {
    "NoSuchBucket": (errno.ENOENT, "there is no such bucket; check its name and the endpoint"),
    "ContainerNotFound": (errno.ENOENT, "there is no such container; check its name, the account"),
    "ExpiredToken": (errno.EACCES, "the credentials have expired; renew them"),
    "SignatureDoesNotMatch": (errno.EACCES, f"the secret does not match the access key; {_KEYS}"),
    "RequestTimeTooSkewed": (errno.EACCES, "this machine's clock differs from the store's; set it"),
    "InvalidObjectState": (errno.EACCES, "the object is in an archive; restore it first"),
}
"""errno and message by the code of the response, if more specific than the status."""

_OTHER_KEYS = "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"
"""Codes after which other keys may help."""

_STATUSES = {
    400: (errno.EINVAL, "the store refuses the request; renew the credentials, check the region"),
    401: (errno.EACCES, f"the store asks for credentials; {_KEYS}"),
    403: (errno.EACCES, f"access is denied; {_KEYS}"),
    404: (errno.ENOENT, "there is no such object"),
    412: (errno.ESTALE, f"the object was replaced after it was listed; {_AGAIN}"),
    416: (errno.ESTALE, f"the object has become shorter since it was listed; {_AGAIN}"),
    429: (errno.EIO, "the store throttles requests; lower the option requests"),
    503: (errno.EIO, "the store throttles requests, or is down; lower the option requests"),
}
_FAILED = errno.EIO, "the store failed; try again later"  # with any other status

_CA = "pass the CA's as client_options={'root_certificate': ...}"
_SIZED = f"{_PLAIN}, and chunked answers"
_MALFORMED = errno.EPROTO, f"the server sent a malformed answer; {_ON_THE_WAY}"
_NO_RANGES = errno.EPROTO, "the server ignores Range, so parts of objects cannot be read"
_OTHER_RANGE = errno.EIO, f"the server sent a different byte range than requested; {_ON_THE_WAY}"
_NO_TARGET = errno.EPROTO, f"the server redirects without a Location; {_ON_THE_WAY}"
_OTHER_HOST = "the certificate of the endpoint is for another host name; check its URL"
_CAUSES = {
    "NotValidForName": (errno.EPROTO, _OTHER_HOST),
    "InvalidCertificate": (errno.EPROTO, f"certificate of the endpoint cannot be verified; {_CA}"),
    "TooManyRedirects": (errno.ELOOP, f"the endpoint redirects in a loop; {_PROXY}"),
    "dns error": (errno.EHOSTUNREACH, f"the host of the endpoint is not known; {_PROXY}"),
    "ConnectionRefused": (errno.ECONNREFUSED, f"the endpoint refuses connections; {_PROXY}"),
    "BadScheme": (errno.EPROTO, "the endpoint is, or redirects to, http://, which is not allowed"),
    "NotPartial": _NO_RANGES,
    "RangeNotSupported": _NO_RANGES,
    "ContentRange": (errno.EPROTO, f"the server sent no valid Content-Range; {_ON_THE_WAY}"),
    "MissingContentLength": (errno.EPROTO, f"the server sent no Content-Length; {_SIZED}"),
    "InvalidContentLength": _MALFORMED,
    "chunk size": _MALFORMED,
    "Parse(": _MALFORMED,
    "InvalidListResponse": (
        errno.EPROTO,
        f"the endpoint sent a list that is not XML; check its URL; {_PLAIN}",
    ),
    "UnexpectedRange": _OTHER_RANGE,
    "InvalidRangeRequest": _OTHER_RANGE,
}
"""errno and message by words in the text, for errors without a response of the store."""

_LIMITS = "check the network, and limits of size and time in the server and its proxies"
_CLOSED = errno.ECONNRESET, f"the connection was closed too early; {_LIMITS}"
_KINDS = {
    "Timeout": (errno.ETIMEDOUT, "no answer in time; raise timeout, or lower requests"),
    "Connect": (errno.EHOSTUNREACH, f"the endpoint cannot be reached; {_PROXY}"),
    "Request": _CLOSED,
    "Interrupted": _CLOSED,
}

_MACHINE = ("http://169.254.169.254", "http://metadata.google.internal", "http://metadata")
_PROVIDER = re.compile(r"External \w+ credential provider: (?:NoKeysError: (.+))?")  # ours


class ShortBodyError(Exception):
    """A response with another length than requested; see retryable()."""

    number = errno.EIO

    @classmethod
    def of(cls, got: int, length: int) -> ShortBodyError:
        return cls(f"the store sent {got:,} bytes instead of {length:,}; {_ON_THE_WAY}")


class EncodedError(Exception):
    """A compressed response that was not asked for."""

    number = errno.EPROTO

    @classmethod
    def of(cls, coding: str) -> EncodedError:
        option = f"client_options={{'default_headers': {{'accept-encoding': {coding!r}}}}}"
        what = f"the server sent compressed bytes (Content-Encoding: {coding}) without being asked"
        return cls(f"{what}; {_PLAIN}; for objects stored like this, pass {option}")


class NoKeysError(Exception):
    """There are no valid keys. The text says why, without secrets."""


class _Failure:
    """The contents of an error's text; empty, or a status of 0, where not given."""

    def __init__(self, error: BaseException) -> None:
        self.endpoint = _found(r"uri: Some\(\n\s*(https?://[^/\s?@]+)/", str(error))
        self.text = re.sub(r"https?://\S+", "", str(error))  # a key may have any words
        # The newline cannot be part of a key: control characters are refused earlier.
        answer = self.text.partition("Status {\n")[2]
        self.status = _CLASSES.get(type(error)) or int(_found(r" *status: (\d{3})", answer) or 0)
        self.code = _found(r"<Code>(\w{1,64})</Code>", answer)
        self.region = _found(r"<Region>([\w-]{1,32})</Region>", answer)
        self.kind = _found(r"HttpError \{\n\s*kind: (\w+)", self.text)  # see _KINDS
        self.bare = "BareRedirect" in self.text
        provider = _PROVIDER.search(self.text)
        self.no_keys = (provider and provider[1]) or ""
        # Despite a provider, or the machine's own credentials, the last resort.
        self.lacks_credentials = self.endpoint in _MACHINE or provider is not None


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def retryable(error: BaseException, reached: bool = True) -> bool:
    """Test if the same request may succeed later.

    With `reached=False`, nothing has been read from this store yet: then an unreachable endpoint,
    or missing credentials, is a mistake rather than an interruption.
    """
    if isinstance(error, ShortBodyError):
        return True
    failure = _Failure(error)
    if failure.lacks_credentials:
        return reached
    if failure.status:
        return failure.status in _TRANSIENT or failure.code == "RequestTimeout"
    if "InvalidCertificate" in failure.text:
        return False
    return reached if failure.kind == "Connect" else failure.kind in _KINDS


def refuses_keys(error: BaseException) -> bool:
    """Test if the store refuses the keys, or refuses a request without a reason."""
    failure = _Failure(error)
    if failure.lacks_credentials:
        return False
    silent = failure.status == 403 and not failure.code
    return silent or failure.status == 401 or failure.code in _OTHER_KEYS


def is_elsewhere(error: BaseException) -> bool:
    """Test if the target of a redirect has ended, is not there, or cannot be reached."""
    failure = _Failure(error)
    return failure.status in (401, 403, 404, 410) or failure.kind == "Connect"


def is_silent(error: BaseException) -> bool:
    """Test if the store refuses a request without a reason, as in responses to HEAD."""
    failure = _Failure(error)
    return 400 <= failure.status < 500 and not (failure.code or retryable(error))


def mapped(error: BaseException, url: bytes) -> OSError:
    """Convert an error of obstore about the object or root `url` to ours, to raise `from None`."""
    if isinstance(error, ObjectReplacedError):
        return error
    if isinstance(error, ShortBodyError | EncodedError):
        return OSError(error.number, str(error), os.fsdecode(url))
    failure = _Failure(error)
    number, what = _NO_TARGET if url[:4] == b"http" and failure.bare else _explain(failure, error)
    what += hub.remedy(url, failure.status)
    if number == errno.ESTALE:
        return ObjectReplacedError(url, what)
    return OSError(number, what, os.fsdecode(url))


def _explain(failure: _Failure, error: BaseException) -> tuple[int, str]:
    if failure.lacks_credentials:
        return errno.EACCES, failure.no_keys or NO_CREDENTIALS
    if failure.region or failure.bare:
        where = f"the region {failure.region}" if failure.region else "another region"
        return errno.EREMOTE, f"the bucket is in {where}; set region, or AWS_REGION"
    if failure.code in _CODES:
        return _CODES[failure.code]
    asked = failure.endpoint and proxy_of(failure.endpoint)
    by = f"; obstore asked by {asked}" if asked else ""
    if failure.status:
        number, what = _STATUSES.get(failure.status, _FAILED)
        return number, f"{what} ({failure.status} {failure.code}".rstrip() + f"){by}"
    other = errno.EIO, f"obstore failed: {type(error).__name__}"
    causes = (meaning for cause, meaning in _CAUSES.items() if cause in failure.text)
    number, what = next(causes, _KINDS.get(failure.kind, other))
    return number, what.replace("the endpoint", f"the endpoint {failure.endpoint}".rstrip(), 1) + by


def quoted(tag: bytes) -> bytes:
    """An ETag in quotes, which some servers, and Azure's lists, leave out."""
    return tag if tag.endswith(b'"') or not tag else b'"%s"' % tag


def same(version: bytes, other: bytes) -> bool:
    """Compare versions weakly (RFC 9110, 8.8.3.2): some servers weaken an ETag on the way."""
    return version.removeprefix(b"W/") == other.removeprefix(b"W/")


def compare(url: bytes, is_now: tuple[int, bytes], was: tuple[int, bytes]) -> None:
    """Raise if the size or the version of an object has changed.

    Both arguments are (size in bytes, version). A store that ignores If-Match sends any version.
    """
    if is_now[0] != was[0] or not same(is_now[1], was[1]):
        sizes = f"{was[0]} bytes, now {is_now[0]}" if is_now[0] != was[0] else "the same size"
        raise ObjectReplacedError(url, f"the object was replaced ({sizes}); {_AGAIN}")
