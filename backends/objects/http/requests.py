"""Requests for objects: where they go, their paths, headers and signatures.

Signature Version 4: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

import obstore
from obstore.store import S3Store

from ....contract.errors import BackendUnavailable
from ..credentials import environment
from ..proxies import proxy_of
from ..roles import trust
from .connections import Job, Server
from .redirects import Web, WebJob

if TYPE_CHECKING:
    from obstore.store import S3Credential

    from ..calls import Call
    from ..store import Stores
    from ..versions import ObjectPart

_KNOWN = re.compile(
    "AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|(DEFAULT_)?(PROFILE|REGION)|CONFIG_FILE"
    "|SHARED_CREDENTIALS_FILE|EC2_METADATA_(DISABLED|SERVICE_ENDPOINT)|METADATA_ENDPOINT"
    "|CONTAINER_(CREDENTIALS_(RELATIVE|FULL)_URI|AUTHORIZATION_TOKEN(_FILE)?)"
    "|WEB_IDENTITY_TOKEN_FILE|ROLE_(ARN|SESSION_NAME)|ENDPOINT_URL_STS"
    "|ENDPOINT(_URL(_S3)?)?|ALLOW_HTTP|VIRTUAL_HOSTED_STYLE_REQUEST"
    # Also unknown to obstore.
    "|CA_BUNDLE|DEFAULT_OUTPUT|EXECUTION_ENV|MAX_ATTEMPTS|PAGER|RETRY_MODE|SDK_LOAD_CONFIG"
    "|STS_REGIONAL_ENDPOINTS)"
)
"""Variables known to leave our requests equal to obstore's; others may change requests."""

_SIGNED = "authorization", "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"
_FRAMING = {"connection", "content-length", "expect", "if-match", "range", "transfer-encoding"}
"""Headers that are ours to send: they change which bytes come, or when they end."""

_IMPLIED = "allow_http", "http1_only"
_HONOURED: Mapping[str, Any] = {
    "allow_invalid_certificates": bool,
    "connect_timeout": timedelta,
    "default_headers": Mapping,
    "root_certificate": (bytes, str),
    "timeout": timedelta,
    "user_agent": str,
}
_CONNECTING = timedelta(seconds=5)  # obstore's default
_WEB = "/!$&'()*+,-:;=@[]^_|~"  # not quoted by obstore in the path of a web server


Signer: TypeAlias = Callable[[Sequence[str]], tuple[list[str], list[str]] | None]


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # headers have secrets
class Bucket:
    """Parameters of requests to a bucket or web server.

    Attributes:
        base: the URL before the quoted key, in which the characters `plain` are not quoted.
        headers: those of all requests, by names in lower case.
        sign: returns the headers shared by all requests made now, and one for each path; or None
            while there are no valid keys.
        web: a server whose redirects are followed.
    """

    base: str
    plain: str
    headers: dict[str, str]
    server: Server
    sign: Signer | None
    web: Web | None

    def job(self, call: Call[ObjectPart, Any], position: int, request: bytes) -> Job:
        """A request for an item of a call."""
        job = call, position, self.server, request, call.places[position]
        return WebJob(*job, web=self.web) if self.web else Job(*job)

    def requests(self, pieces: Sequence[ObjectPart]) -> list[bytes]:
        """Make n requests for pieces of the bucket, signed now; none while there are no keys."""
        root = urlsplit(self.base).path
        paths = [root + quote(piece.place[1], safe=self.plain) for piece in pieces]
        signatures = self.sign(paths) if self.sign else ([], [""] * len(paths))
        if signatures is None:
            return []
        shared, signed = signatures
        given = [f"{name}: {value}" for name, value in self.headers.items()]
        first = "\r\n".join([" HTTP/1.1", *given, *shared])
        requests = []
        for path, line, piece in zip(paths, signed, pieces, strict=True):
            text = f"GET {path}{first}\r\n{line}"
            if piece.version:
                text += f"If-Match: {piece.version.decode()}\r\n"
            if piece.length != piece.size:  # whole objects without: some file servers lack ranges
                text += f"Range: bytes={piece.start}-{piece.start + piece.length - 1}\r\n"
            requests.append(f"{text}\r\n".encode())
        return requests


def bucket_of(stores: Stores, scheme: str, bucket: str) -> Bucket:
    """Prepare requests to a bucket.

    Raises:
        BackendUnavailable: only obstore can make these requests; names the reason.
        ValueError, OSError: as `Stores.locate()`.
    """
    options = stores.settings[scheme, bucket]["client_options"]
    headers, sign = headers_of(options), None
    if scheme in ("http", "https"):
        base = f"{scheme}://{bucket}/"
    elif scheme != "s3" or bucket.endswith("--x-s3"):
        raise _only(f"signs requests to {scheme}://{bucket}")
    else:
        settings = {**stores.settings[scheme, bucket]}
        for name, value in sorted(os.environ.items()):
            signs = name == "AWS_SKIP_SIGNATURE" and value.lower() in ("0", "false", "no", "off")
            if name.startswith("AWS_") and value and not (signs or _KNOWN.fullmatch(name)):
                raise _only(f"supports {name}")
        keys, fixed = settings.pop("credential_provider", None), environment()
        anonymous = settings.pop("skip_signature", False)
        if not (anonymous or keys or fixed):
            raise _only("finds the keys")
        # Obstore knows the URL of the bucket; its signature here is not sent.
        store = S3Store(bucket, **settings, access_key_id="x", secret_access_key="x")
        url, _, query = obstore.sign(store, "GET", "key", timedelta(seconds=1)).partition("?")
        base = url.removesuffix("key")
        if not anonymous:
            current = keys.current if keys else lambda: fixed and fixed.credential
            host = headers.get("host", urlsplit(base).netloc)
            sign = _signer(current, query.split("%2F")[2], host)
            headers = {name: headers[name] for name in headers if name not in _SIGNED}
    parts, find = urlsplit(base), _finder(options)
    headers = {"host": parts.netloc} | headers  # first: redirects change it
    web = Web(parts, find) if scheme in ("http", "https") else None
    return Bucket(base, "/~" if scheme == "s3" else _WEB, headers, find(parts), sign, web)


def _finder(options: Mapping[str, Any]) -> Callable[[SplitResult], Server]:
    """A function that returns the server of a URL; raises BackendUnavailable for obstore's."""
    times = options["timeout"], options.get("connect_timeout", _CONNECTING)
    seconds = [each.total_seconds() for each in times]
    contexts = list[ssl.SSLContext]()  # one, once it is needed

    def find(url: SplitResult) -> Server:
        if asked := proxy_of(url.geturl()):
            raise _only(f"uses {asked}")
        if url.scheme != "https":
            return Server(url.hostname or "", url.port or 80, None, *seconds)
        if not contexts:
            try:
                contexts.append(trust(options))
            except ssl.SSLError:
                raise _only("understands this client_options['root_certificate']") from None
            contexts[0].set_alpn_protocols(["http/1.1"])
        return Server(url.hostname or "", url.port or 443, contexts[0], *seconds)

    return find


def headers_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The headers of all requests by obstore's client options; as there, a name's last one counts.

    Raises:
        BackendUnavailable: only obstore honours an option; names the option.
    """
    for name, value in options.items():
        if not (isinstance(value, _HONOURED.get(name, ())) or (name in _IMPLIED and value)):
            raise _only(f"honours client_options[{name!r}]")
    given = options.get("default_headers", {})
    headers = {"user-agent": options.get("user_agent", "dali_storage")}
    headers |= {name.lower(): _text(value) for name, value in given.items()}
    if odd := [*_FRAMING & {*headers}]:
        raise _only(f"sends client_options['default_headers'][{odd[0]!r}]")
    return headers


def _signer(current: Callable[[], S3Credential | None], region: str, host: str) -> Signer:
    """Make a function to sign requests by the current keys. It keeps no secret."""

    def sign(paths: Sequence[str]) -> tuple[list[str], list[str]] | None:
        if not (credential := current()):
            return None
        names, extra = "host;x-amz-content-sha256;x-amz-date", ""
        if credential["token"]:
            names += ";x-amz-security-token"
            extra = f"x-amz-security-token:{credential['token']}\n"
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        scope = f"{now[:8]}/{region}/s3/aws4_request"
        key = f"AWS4{credential['secret_access_key']}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        payload = "UNSIGNED-PAYLOAD"
        headers = f"host:{host}\nx-amz-content-sha256:{payload}\nx-amz-date:{now}\n{extra}"
        rest = f"\n\n{headers}\n{names}\n{payload}"
        start = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n"
        line = f"Authorization: AWS4-HMAC-SHA256 Credential={credential['access_key_id']}/{scope}, "
        line += f"SignedHeaders={names}, Signature="
        lines = []
        for path in paths:
            text = start + hashlib.sha256(f"GET\n{path}{rest}".encode()).hexdigest()
            lines.append(f"{line}{hmac.digest(key, text.encode(), 'sha256').hex()}\r\n")
        return headers.rstrip().split("\n")[1:], lines  # the host is sent in any case

    return sign


def _only(does: str) -> BackendUnavailable:
    return BackendUnavailable(f"only obstore {does}", "leave it out, or set transport='auto'")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin1")
