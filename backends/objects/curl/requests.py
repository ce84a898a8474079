"""Requests for libcurl: URLs, headers and signatures; and checks of the responses.

Signature Version 4: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import numpy as np
import obstore
from obstore.store import S3Store

from ....contract._types import IntArray
from ....contract.errors import BackendUnavailable
from ..credentials import static_keys
from ..errors import AnswerError, ShortBodyError, compare
from ..store import require_plain
from . import libcurl as curl

if TYPE_CHECKING:
    from obstore.store import S3Credential

    from ..store import Stores
    from ..versions import ObjectPart

_REMEDY = "leave it out, or set transport='obstore'"
_KNOWN = re.compile(
    "AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|(DEFAULT_)?(PROFILE|REGION)|CONFIG_FILE"
    "|SHARED_CREDENTIALS_FILE|EC2_METADATA_DISABLED|ENDPOINT(_URL(_S3)?)?|ALLOW_HTTP"
    "|VIRTUAL_HOSTED_STYLE_REQUEST"
    # Also unknown to obstore.
    "|CA_BUNDLE|DEFAULT_OUTPUT|EXECUTION_ENV|MAX_ATTEMPTS|PAGER|RETRY_MODE|SDK_LOAD_CONFIG"
    "|STS_REGIONAL_ENDPOINTS)"
)
"""Variables known to leave libcurl's requests equal to obstore's; others may change requests."""

_WEB = "/!$&'()*+,-:;=@[]^_|~"  # not quoted by obstore in the path of a web server
_TAG = re.compile(rb"\r\netag: *([^\r]*)", re.I)
_ENCODING = re.compile(rb"\r\ncontent-encoding: *([^\r]*)", re.I)
_RANGE = re.compile(rb"\r\ncontent-range: *bytes ([0-9]+)-([0-9]+)/([0-9]+)", re.I)

_CLOSED = 18, 52, 55, 56  # libcurl's codes: connection closed too early,
_TOO_LONG, _LATE = 23, 28  # body too long for its memory, timeout,
_UNREACHABLE, _UNTRUSTED = (6, 7, 35), 60  # no connection, certificate not trusted


class AskObstore(Exception):  # noqa: N818  (no failure of the store)
    """A response to be handled, or explained, by obstore.

    The text is a word of _CAUSES in ../errors.py; without a text, a retry may well succeed.
    """


class Bucket(NamedTuple):
    """Parameters of requests to a bucket or web server.

    Attributes:
        base: the URL before the quoted key.
        is_s3: or a web server, where other characters are quoted.
        sign: returns the headers shared by all requests made now, and one for each path.
    """

    base: str
    is_s3: bool
    sign: Callable[[Sequence[str]], tuple[list[str], list[str]]] | None


def bucket_of(stores: Stores, scheme: str, bucket: str) -> Bucket:
    """Prepare libcurl's requests to a bucket.

    Raises:
        BackendUnavailable: libcurl cannot make these requests; names the reason.
        ValueError, OSError: as `Stores.locate()`.
    """
    if scheme in ("http", "https"):
        base, sign = f"{scheme}://{bucket}/", None
    elif scheme != "s3" or bucket.endswith("--x-s3"):
        raise BackendUnavailable(f"libcurl does not sign requests to {scheme}://{bucket}", _REMEDY)
    else:
        settings = {**stores.settings[scheme, bucket]}
        option = "allow_invalid_certificates"
        if settings["client_options"].get(option) != stores.client.get(option):
            raise BackendUnavailable("libcurl does not support DALI_S3_NO_VERIFY_SSL", _REMEDY)
        for name, value in sorted(os.environ.items()):
            signs = name == "AWS_SKIP_SIGNATURE" and value.lower() in ("0", "false", "no", "off")
            if name.startswith("AWS_") and value and not (signs or _KNOWN.fullmatch(name)):
                raise BackendUnavailable(f"libcurl does not support {name}", _REMEDY)
        settings.pop("credential_provider", None)
        anonymous, keys = settings.pop("skip_signature", False), None
        if not (anonymous or (keys := static_keys())):
            what = "libcurl signs only with keys of the environment or the profile"
            raise BackendUnavailable(what, "set transport='obstore'")
        # Obstore knows the URL of the bucket; its signature here is not sent.
        store = S3Store(bucket, **settings, access_key_id="x", secret_access_key="x")
        url, _, query = obstore.sign(store, "GET", "key", timedelta(seconds=1)).partition("?")
        base = url.removesuffix("key")
        sign = _signer(keys, query.split("%2F")[2], _host(base)) if keys else None
    proxies, protocol, host = getproxies_environment(), *urlsplit(base)[:2]
    trusting = protocol == "https" and "root_certificate" not in stores.client
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if trusting and os.environ.get(name):
            raise BackendUnavailable(f"libcurl does not support {name}", _REMEDY)
    if {"all", protocol} & {*proxies} and not proxy_bypass(host):
        raise BackendUnavailable("libcurl is not used with the proxy of the environment", _REMEDY)
    return Bucket(base, scheme == "s3", sign)


def client_settings(options: Mapping[str, Any]) -> tuple[list[tuple[int, Any]], list[bytes]]:
    """Convert obstore's client options to options of a handle, and headers.

    Raises:
        BackendUnavailable: libcurl has no counterpart of an option; names the option.
    """
    settings: list[tuple[int, Any]] = []
    headers: list[bytes] = []
    for name, value in ({"connect_timeout": timedelta(seconds=5)} | dict(options)).items():
        match name, value:
            case "timeout" | "connect_timeout", timedelta():
                number = curl.TIMEOUT_MS if name == "timeout" else curl.CONNECTTIMEOUT_MS
                settings.append((number, max(round(value / timedelta(milliseconds=1)), 1)))
            case "allow_invalid_certificates", bool():
                settings += [(curl.VERIFYPEER, not value), (curl.VERIFYHOST, 2 * (not value))]
            case "root_certificate", bytes() | str():
                settings += [(curl.CAINFO_BLOB, _text(value)), (curl.CAPATH, None)]
            case "user_agent", str():
                settings.append((curl.USERAGENT, value.encode()))
            case "default_headers", Mapping() as given if all(given.values()):
                headers += [_text(name) + b": " + _text(given[name]) for name in given]
            case "allow_http" | "http1_only", True:
                pass
            case _:
                what = f"libcurl is not used with client_options[{name!r}]"
                raise BackendUnavailable(what, _REMEDY)
    return settings, headers


class Requests(NamedTuple):
    """n requests in libcurl's form.

    Attributes:
        urls: the URL of each request.
        headers: int64[n], the address of each request's header list; 0: none.
        memory: must live as long as the requests.
    """

    urls: list[bytes]
    headers: IntArray
    memory: Any


def make_requests(bucket: Bucket, pieces: Sequence[ObjectPart], common: list[bytes]) -> Requests:
    """Make requests for pieces of one bucket, signed now; `common` are headers of all."""
    plain = "/~" if bucket.is_s3 else _WEB
    urls = [bucket.base + quote(piece.place[1], safe=plain) for piece in pieces]
    own: list[list[str]] = [[] for _ in pieces]
    shared: list[str] = []
    if bucket.sign:
        root = len(bucket.base) - len(urlsplit(bucket.base).path)
        shared, signed = bucket.sign([url[root:] for url in urls])
        own = [[line] for line in signed]
    for lines, piece in zip(own, pieces, strict=True):
        if piece.version:
            lines.append(f"If-Match: {piece.version.decode()}")
        if piece.length != piece.size:  # whole objects without: some file servers lack ranges
            lines.append(f"Range: bytes={piece.start}-{piece.start + piece.length - 1}")
    first = [line.encode() for line in shared] + common
    rows = [[line.encode() for line in lines] for lines in own]
    headers, memory = _header_lists(rows, first)
    return Requests([url.encode() for url in urls], headers, memory)


def check(piece: ObjectPart, code: int, status: int, head: bytes, size: int, body: bytes) -> None:
    """Refuse a response that does not match the requested piece.

    Args:
        piece: the requested piece.
        code: libcurl's result.
        status: the status of HTTP; 0: no response.
        head: the headers of the response.
        size: the size of the received body, in bytes.
        body: the body of an error, as far as there was room.

    Raises:
        ObjectReplacedError, ShortBodyError, EncodedError, AnswerError: see ../errors.py.
        AskObstore: a redirect, an untrusted certificate, or anything unknown.
    """
    if code == _LATE or code in _CLOSED:
        raise AnswerError.of_connection("Timeout" if code == _LATE else "Request")
    if status >= 400 and code in (0, _TOO_LONG):
        raise AnswerError.of_status(status, body)
    whole = piece.length == piece.size
    if code in _UNREACHABLE:
        raise AskObstore
    if code == _UNTRUSTED or 300 <= status < 400:
        raise AskObstore("InvalidCertificate" if code == _UNTRUSTED else "Redirected")
    ranged = status == 206 or b"\r\ncontent-range:" in head.lower()
    if code not in (0, _TOO_LONG) or status not in (200, 206) or (whole and ranged):
        raise AskObstore("NotUnderstood")
    require_plain(piece.place[0], b",".join(_ENCODING.findall(head)).decode("latin1"))
    part = _RANGE.search(head)
    if not whole and (status != 206 or not part):
        raise AnswerError("NotPartial")
    tag = match[1] if piece.version and (match := _TAG.search(head)) else b""
    version = tag if tag.endswith(b'"') or not tag else b'"%s"' % tag
    if not (whole and tag and version == piece.version):
        found = int(part[3]) if part else size
        compare(piece.url, (found, version), (piece.size, piece.version))
    if part and (int(part[1]), int(part[2]) + 1) != (piece.start, piece.start + piece.length):
        raise AnswerError("UnexpectedRange")
    if code or size != piece.length:
        raise ShortBodyError.of(size, piece.length)


def _signer(
    credential: S3Credential, region: str, host: str
) -> Callable[[Sequence[str]], tuple[list[str], list[str]]]:
    """Make a function to sign requests. The secret is only in variables of this function."""
    names, extra = "host;x-amz-content-sha256;x-amz-date", ""
    if credential["token"]:
        names += ";x-amz-security-token"
        extra = f"x-amz-security-token:{credential['token']}\n"

    def sign(paths: Sequence[str]) -> tuple[list[str], list[str]]:
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
            lines.append(line + hmac.digest(key, text.encode(), "sha256").hex())
        shared = headers.rstrip().split("\n")[1:]  # libcurl itself sends the host
        return shared, lines

    return sign


def _host(base: str) -> str:
    """The header Host sent by libcurl for a URL."""
    parts = urlsplit(base)
    return parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}[parts.scheme])


def _header_lists(rows: list[list[bytes]], shared: list[bytes]) -> tuple[IntArray, Any]:
    """Make a curl_slist for each of n rows, all ending in the shared lines; return addresses."""
    lines = [*shared, *(line for row in rows for line in row)]
    text = np.frombuffer(b"\0".join([*lines, b""]), np.uint8)
    sizes = np.fromiter(map(len, lines), np.int64, len(lines)) + 1
    nodes = np.zeros((len(lines) + 1, 2), np.int64)  # a string and the next node
    at = nodes.ctypes.data + 16 * np.arange(len(lines) + 1)
    nodes[:-1, 0] = text.ctypes.data + np.cumsum(sizes) - sizes
    nodes[:-1, 1] = at[1:]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    ends = len(shared) + np.cumsum(counts)
    common = int(at[0]) if shared else 0
    nodes[ends[counts > 0] - 1, 1] = common
    if shared:
        nodes[len(shared) - 1, 1] = 0
    return np.where(counts > 0, at[ends - counts], common), (text, nodes)


def _text(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
