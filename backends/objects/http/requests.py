"""Requests for objects: where they go, and their headers."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

import obstore
from obstore.store import S3Store

from ....contract.errors import BackendUnavailable
from ..credentials import environment
from ..keys import Keys
from ..proxies import proxy_of
from ..roles import trust
from .connections import Job, Server
from .redirects import Web, WebJob
from .signatures import LIFE, Address, Signer, azure, by_keys, by_token, quoted

if TYPE_CHECKING:
    from ..calls import Call
    from ..store import Stores
    from ..versions import ObjectPart

_KNOWN = {
    "s3": "AWS_(ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|(DEFAULT_)?(PROFILE|REGION)"
    "|CONFIG_FILE|SHARED_CREDENTIALS_FILE|EC2_METADATA_(DISABLED|SERVICE_ENDPOINT)|METADATA_ENDPOINT"
    "|CONTAINER_(CREDENTIALS_(RELATIVE|FULL)_URI|AUTHORIZATION_TOKEN(_FILE)?)"
    "|WEB_IDENTITY_TOKEN_FILE|ROLE_(ARN|SESSION_NAME)|ENDPOINT_URL_STS"
    "|ENDPOINT(_URL(_S3)?)?|ALLOW_HTTP|VIRTUAL_HOSTED_STYLE_REQUEST"
    # Also unknown to obstore.
    "|CA_BUNDLE|DEFAULT_OUTPUT|EXECUTION_ENV|MAX_ATTEMPTS|PAGER|RETRY_MODE|SDK_LOAD_CONFIG"
    "|STS_REGIONAL_ENDPOINTS)",
    "gs": r"GOOGLE_(APPLICATION_CREDENTIALS|API_KEY|BASE_URL|CLOUD_\w+|GENAI_\w+)",
    "az": "AZURE_(STORAGE_)?(ACCOUNT_(NAME|KEY)|(ACCESS|MASTER|SAS)_KEY|(SAS_)?TOKEN|ENDPOINT"
    "|CLIENT_(ID|SECRET)|TENANT_ID|AUTHORITY_(HOST|ID)|FEDERATED_TOKEN_FILE|OBJECT_ID"
    "|MSI_(ENDPOINT|RESOURCE_ID)|IDENTITY_ENDPOINT|CREDENTIAL_TYPE|USE_(AZURE_CLI|EMULATOR))",
}
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
_AZURE = "2023-11-03"  # also obstore's; without it, a very old one
_GOOGLE = "https://storage.googleapis.com"
_PROVIDER = "credential_provider"
_WEB = "/!$&'()*+,-:;=@[]^_|~"  # not quoted by obstore in the path of a web server


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # headers have secrets
class Bucket:
    """Parameters of requests to a bucket or web server.

    Attributes:
        address: returns the paths of keys, with queries; or none while they cannot be signed.
        headers: those of all requests, by names in lower case.
        sign: returns the headers shared by all requests made now, and one for each path; or None
            while there are no valid keys.
        web: a server whose redirects are followed.
    """

    address: Address
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
        paths = self.address([piece.place[1] for piece in pieces])
        signatures = self.sign(paths) if self.sign else ([], [""] * len(paths))
        if signatures is None or not paths:
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
    settings = {**stores.settings[scheme, bucket]}
    options = settings["client_options"]
    headers, sign = headers_of(options), None
    anonymous, keys = settings.pop("skip_signature", False), settings.pop(_PROVIDER, None)
    _check_variables(scheme)
    if scheme == "s3":
        base, sign = _s3(bucket, settings, anonymous, keys, headers.get("host"))
        address = quoted(base)
    elif scheme == "gs":
        if not (anonymous or keys):
            what = "only obstore finds the keys of gs:// without google-auth"
            raise BackendUnavailable(what, "pip install google-auth requests")
        base = f"{settings.get('base_url', _GOOGLE).rstrip('/')}/{bucket}/"
        address, sign = quoted(base), None if anonymous else by_token(keys.current)
    elif scheme == "az":
        store = stores.bucket(scheme, bucket, b"")
        if not (found := azure(store, bucket, settings, anonymous)):
            raise _only("can use these credentials of az://")
        (base, address), headers = found, {"x-ms-version": _AZURE} | headers
    else:
        base = f"{scheme}://{bucket}/"
        address = quoted(base, _WEB)
    if sign:
        headers = {name: headers[name] for name in headers if name not in _SIGNED}
    parts, find = urlsplit(base), _finder(options)
    headers = {"host": parts.netloc} | headers  # first: redirects change it
    web = Web(parts, find) if scheme in ("http", "https") else None
    return Bucket(address, headers, find(parts), sign, web)


def _s3(
    bucket: str, settings: Mapping[str, Any], anonymous: bool, keys: Keys | None, host: str | None
) -> tuple[str, Signer | None]:
    """The URL of a bucket, and what signs requests; `host` replaces that of the URL."""
    fixed = environment()
    if bucket.endswith("--x-s3"):
        raise _only(f"signs requests to s3://{bucket}")
    if not (anonymous or keys or fixed):
        raise _only("finds the keys")
    # Obstore knows the URL of the bucket; its signature here is not sent.
    store = S3Store(bucket, **settings, access_key_id="x", secret_access_key="x")
    base, _, query = obstore.sign(store, "GET", "key", LIFE).partition("key?")
    if anonymous:
        return base, None
    current = keys.current if keys else lambda: fixed and fixed.credential
    return base, by_keys(current, query.split("%2F")[2], host or urlsplit(base).netloc)


def _check_variables(scheme: str) -> None:
    """Raise BackendUnavailable for a variable by which obstore may change requests."""
    known = _KNOWN.get(scheme, "")
    for name, value in sorted(os.environ.items()):
        signs = name.endswith("_SKIP_SIGNATURE") and value.lower() in ("0", "false", "no", "off")
        starts = known and name.startswith(known.partition("(")[0])
        if starts and value and not (signs or re.fullmatch(known, name)):
            raise _only(f"supports {name}")


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


def _only(does: str) -> BackendUnavailable:
    return BackendUnavailable(f"only obstore {does}", "leave it out, or set transport='auto'")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin1")
