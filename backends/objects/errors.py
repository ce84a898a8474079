"""Errors of obstore as ours, told apart by the status, the code and the kind in their text.

obstore has few classes of exceptions, and neither a status nor a cause as an attribute. All of that
is in the text that Rust prints for debugging, so its version is pinned. Nothing of the text gets
into our messages but the status, the code and the region: it holds URLs, which may be signed.
"""

from __future__ import annotations

import errno
import os
import re

from ...contract.errors import ObjectReplacedError

NO_CREDENTIALS = (
    "no credentials were found; set them in the environment, or where the store's own tools keep "
    "them; public objects are read with the option anonymous=True"
)

_TRANSIENT = 408, 425, 429, 500, 502, 503, 504  # statuses; the same request may succeed later
_AGAIN = "list it again: make a new reader, or write the index again"
_PROXY = "check its URL, the network and the proxies"
_KEYS = "check the credentials, and that they may read this"

_CODES = {
    "NoSuchBucket": (errno.ENOENT, "there is no such bucket; check its name and the endpoint"),
    "ContainerNotFound": (errno.ENOENT, "there is no such container; check its name, the account"),
    "ExpiredToken": (errno.EACCES, "the credentials have expired; renew them"),
    "SignatureDoesNotMatch": (errno.EACCES, f"the secret is not that of the access key; {_KEYS}"),
    "RequestTimeTooSkewed": (errno.EACCES, "the clocks of store and machine differ; set this one"),
    "InvalidObjectState": (errno.EACCES, "the object is in an archive; restore it first"),
}
"""errno and message by the code of the answer, where that says more than its status."""

_STATUSES = {
    400: (errno.EINVAL, "the store refuses the request; renew the credentials, check the region"),
    401: (errno.EACCES, f"the store asks for credentials; {_KEYS}"),
    403: (errno.EACCES, f"access is denied; {_KEYS}"),
    404: (errno.ENOENT, "there is no such object"),
    412: (errno.ESTALE, f"the object was replaced after it was listed; {_AGAIN}"),
    416: (errno.ESTALE, f"the object is shorter than it was when it was listed; {_AGAIN}"),
    429: (errno.EIO, "the store throttles requests; lower the option requests"),
    503: (errno.EIO, "the store throttles requests, or is down; lower the option requests"),
}
_FAILED = errno.EIO, "the store failed; try again later"  # with any other status

_CA = "give the authority's as client_options={'root_certificate': ...}"
_INSTEAD = "set the region or endpoint, or transport='auto'"
_CAUSES = {
    "InvalidCertificate": (errno.EPROTO, f"certificate of the endpoint cannot be verified; {_CA}"),
    "TooManyRedirects": (errno.ELOOP, f"the endpoint redirects for ever; {_PROXY}"),
    "dns error": (errno.EHOSTUNREACH, f"the host of the endpoint is not known; {_PROXY}"),
    "ConnectionRefused": (errno.ECONNREFUSED, f"the endpoint refuses connections; {_PROXY}"),
    "BadScheme": (errno.EPROTO, "the endpoint is not https://, and may not be http://"),
    "NotPartial": (errno.EPROTO, "the server ignores Range, so parts of objects cannot be read"),
    "Redirected": (errno.EREMOTE, f"libcurl does not follow the endpoint's redirects; {_INSTEAD}"),
    "NotUnderstood": (errno.EPROTO, f"libcurl does not understand the server; {_INSTEAD}"),
    "WrongRange": (errno.EIO, "the server sent another range of bytes than it was asked for"),
}
"""errno and message by words in the text, where there was no answer of the store."""

_CLOSED = errno.ECONNRESET, "the connection was closed too early; check the network"
_KINDS = {
    "Timeout": (errno.ETIMEDOUT, "no answer in time; raise timeout, or lower requests"),
    "Connect": (errno.EHOSTUNREACH, f"the endpoint cannot be reached; {_PROXY}"),
    "Request": _CLOSED,
    "Interrupted": _CLOSED,
}

_MACHINE = ("http://169.254.169.254", "http://metadata.google.internal", "http://metadata")
_PROVIDER = "External AWS credential provider: "  # which is boto3's


class ShortBodyError(Exception):
    """An answer had another length than it was asked for; whether to ask again, see retryable()."""

    @classmethod
    def of(cls, got: int, length: int) -> ShortBodyError:
        return cls(f"the store sent {got:,} bytes instead of {length:,}; try again")


class AnswerError(Exception):
    """A failure that libcurl has seen; its text is as obstore's, see _Failure."""

    @classmethod
    def of_status(cls, status: int, body: bytes) -> AnswerError:
        return cls(f"Status {{\n status: {status}\n{body.decode(errors='replace')}")

    @classmethod
    def of_connection(cls, kind: str) -> AnswerError:
        """`kind`: see _KINDS."""
        return cls(f"HttpError {{\n kind: {kind}")


class _Failure:
    """What the text of an error says; empty, and a status of 0, where it says nothing."""

    def __init__(self, error: BaseException) -> None:
        self.text = str(error)
        # The newline cannot be part of a key: control characters are refused before.
        answer = self.text.partition("Status {\n")[2]
        self.status = int(_found(r" *status: (\d{3})", answer) or 0)
        self.code = _found(r"<Code>(\w{1,64})</Code>", answer)
        self.region = _found(r"<Region>([\w-]{1,32})</Region>", answer)
        self.kind = _found(r"HttpError \{\n\s*kind: (\w+)", self.text)  # see _KINDS
        self.endpoint = _found(r"uri: Some\(\n\s*(https?://[^/\s?@]+)/", self.text)
        # In spite of boto3, or those of the machine, the last resort.
        self.lacks_credentials = self.endpoint in _MACHINE or _PROVIDER in self.text


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def retryable(error: BaseException, reached: bool = True) -> bool:
    """Whether the same request may succeed later.

    With `reached=False`, nothing has been read of this store yet: an endpoint that cannot be
    connected to, or no credentials, is then a mistake rather than an interruption.
    """
    if isinstance(error, ShortBodyError):
        return True
    failure = _Failure(error)
    if "InvalidCertificate" in failure.text:
        return False
    if failure.lacks_credentials:
        return reached
    if failure.status:
        return failure.status in _TRANSIENT or failure.code == "RequestTimeout"
    return reached if failure.kind == "Connect" else failure.kind in _KINDS


def is_silent(error: BaseException) -> bool:
    """Whether the store refuses a request without saying why, as answers to HEAD do."""
    failure = _Failure(error)
    return 400 <= failure.status < 500 and not (failure.code or retryable(error))


def mapped(error: BaseException, url: bytes) -> OSError:
    """Our error for one that obstore raised for the object or root `url`. Raise it `from None`."""
    if isinstance(error, ObjectReplacedError):
        return error
    if isinstance(error, ShortBodyError):
        return OSError(errno.EIO, str(error), os.fsdecode(url))
    number, what = _explain(_Failure(error), error)
    if number == errno.ESTALE:
        return ObjectReplacedError(url, what)
    return OSError(number, what, os.fsdecode(url))


def _explain(failure: _Failure, error: BaseException) -> tuple[int, str]:
    if failure.lacks_credentials:
        return errno.EACCES, NO_CREDENTIALS
    if failure.region or "BareRedirect" in failure.text:
        where = f"the region {failure.region}" if failure.region else "another region"
        return errno.EREMOTE, f"the bucket is in {where}; set region, or AWS_REGION"
    if failure.code in _CODES:
        return _CODES[failure.code]
    if failure.status:
        number, what = _STATUSES.get(failure.status, _FAILED)
        return number, f"{what} ({failure.status} {failure.code}".rstrip() + ")"
    other = errno.EIO, f"obstore failed: {type(error).__name__}"
    causes = (meaning for cause, meaning in _CAUSES.items() if cause in failure.text)
    number, what = next(causes, _KINDS.get(failure.kind, other))
    return number, what.replace("the endpoint", f"the endpoint {failure.endpoint}".rstrip(), 1)


def compare(url: bytes, is_now: tuple[int, bytes], was: tuple[int, bytes]) -> None:
    """Raise unless an object has the size and the version that it had.

    Both are (size in bytes, version). Stores that ignore If-Match answer with what they have.
    """
    if is_now != was:
        sizes = f"{was[0]} bytes, now {is_now[0]}" if is_now[0] != was[0] else "the same size"
        raise ObjectReplacedError(url, f"the object was replaced ({sizes}); {_AGAIN}")
