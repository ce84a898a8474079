"""Resolution of a URL to the store of a bucket and a key there, exactly as written."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias
from urllib.parse import unquote

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from ...contract.objects import require_public
from ...contract.options import Flag, Option, check_options
from . import hub
from .credentials import Profile, signing, source
from .errors import FORKED, NO_CREDENTIALS, EncodedError, is_silent, refuses_keys

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

Timeout: TypeAlias = Annotated[float, Option((0.001, 3600), "s")]
Store: TypeAlias = S3Store | GCSStore | AzureStore | HTTPStore

_ENDPOINTS = {
    # obstore gives aws_endpoint_url_s3 priority over all others
    "s3": ("aws_endpoint_url_s3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"),
    "gs": ("base_url", "DALI_GCS_ENDPOINT_URL", "GOOGLE_BASE_URL"),
    "az": ("endpoint", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The option of obstore and the variables that name an endpoint; the first variable counts."""

_VARIABLES = {"s3": ("AWS_",), "gs": ("GOOGLE_", "DALI_GCS_"), "az": ("AZURE_",)}
"""Prefixes of the names of a scheme's variables."""

_ACCOUNTS = "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE"
"""Beginnings of variables for credentials that only obstore knows."""

# Variables that select the containers.
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR", "AZURITE_BLOB_STORAGE_URL"
_OPENED_BY: set[int] = set()  # processes; forks inherit it

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_SERVICE = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:([0-9]+))?(/[\w.~%+/-]*)?", re.A
)
PRIVATE = "authorization", "cookie", "host", "proxy-authorization"  # for one server
# Not the labels of stored objects: aws-chunked, base64, utf-8.
_COMPRESSED = {"br", "bzip2", "compress", "deflate", "gzip", "xz", "zstd"}
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


class Stores:
    """The stores of all buckets, each opened at its first use, for any number of threads.

    Credentials are in obstore's objects only. The lock prevents pickling.
    """

    @check_options("object-store")
    def __init__(
        self,
        endpoint: str | None = None,
        region: str | None = None,
        anonymous: Flag = False,
        timeout: Timeout = 30.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open nothing yet. The options, and the errors for wrong ones, are as for the backend."""
        name, client = "object-store", client_options or {}
        if region and not (isinstance(region, str) and re.fullmatch(r"[\w-]+", region, re.A)):
            raise ValueError(f"{name}: region must be like us-east-1, not {region!r}")
        if not isinstance(client, Mapping):
            raise TypeError(f"{name}: client_options must be a mapping from option to value")
        for option in client:
            checked: Any = {option: client[option]}
            try:
                HTTPStore("http://localhost/", client_options=checked)
            except Exception:  # obstore's, with the value in its text
                what = f"obstore refuses client_options[{option!r}]"
                raise ValueError(f"{what}; see obstore.store.ClientConfig") from None
        self._endpoint = _endpoint(endpoint, f"{name}: endpoint")
        self._region, self._anonymous = region, anonymous
        self.client = {"timeout": timedelta(seconds=timeout)} | dict(client)
        self._stores: dict[tuple[str, str], Store] = {}
        self.targets: dict[bytes, Any] = {}  # of redirects, kept by the client of our own
        # The settings of each store, by scheme and bucket.
        self.settings: dict[tuple[str, str], dict[str, Any]] = {}
        # The arguments for credentials of all buckets of a scheme, once one is open.
        self._signing: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def locate(self, url: bytes) -> tuple[Store, str]:
        """Find the store and the key of an object.

        Keys are used as written, except for http:// and https://, where they are quoted.

        Raises:
            ValueError: no object can have this URL, or its key cannot be requested; names the URL.
            OSError: the store cannot be opened; names the URL.
            BackendUnavailable: a package for getting the credentials is missing.
            RuntimeError: stores were opened before this process was forked.
        """
        scheme, bucket, key = split(url)
        if _ODD.search(key):
            _refuse(url, "has an empty, '.' or '..' part, or control characters; rename the object")
        return self.bucket(scheme, bucket, url), key

    def place(self) -> bytes:
        """An identity of the configured services, to distinguish equal URLs; without secrets."""
        endpoints = [self._endpoint or _endpoint_of(scheme) for scheme in _ENDPOINTS]
        return repr([*endpoints, *map(os.environ.get, _ACCOUNT)]).encode()

    def bucket(self, scheme: str, bucket: str, url: bytes) -> Store:
        """The store of a bucket; errors name `url`."""
        with self._lock:
            if (scheme, bucket) not in self._stores:
                self._stores[scheme, bucket] = self._open(scheme, bucket, url)
            return self._stores[scheme, bucket]

    def target(self, url: str, *, foreign: bool) -> Store:
        """The store whose empty key is a URL; a foreign server gets no secret header."""
        settings = self._settings("https", url)
        client = settings["client_options"]
        given = client.get("default_headers", {})
        kept = {name: given[name] for name in given if not (foreign and name.lower() in PRIVATE)}
        return HTTPStore(url, **settings | {"client_options": client | {"default_headers": kept}})

    def share(self, others: Stores) -> None:
        """Use what others, with the same options, have opened; their connections stay open."""
        self._stores, self.settings = {**others._stores}, {**others.settings}
        self._signing = others._signing
        self.targets.update(others.targets)

    def renewed(self, error: BaseException, since: float) -> bool:
        """Test if a request of a time (monotonic) failed by keys that are replaced now.

        Looks for other keys, which may take as long as their source.
        """
        keys = [it.get("credential_provider") for it in self._signing.values()]
        return refuses_keys(error) and any(it.replaced(since) for it in filter(None, keys))

    def close(self) -> None:
        """Forget all stores. Connections end with the last reference to their store."""
        self._stores.clear()

    def _open(self, scheme: str, bucket: str, url: bytes) -> Store:
        _OPENED_BY.add(os.getpid())
        if len(_OPENED_BY) > 1:
            raise RuntimeError(FORKED)
        stores: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
        name = bucket if scheme in stores else f"{scheme}://{bucket}/"
        try:
            settings = self._settings(scheme, name)
        except PermissionError:
            raise PermissionError(errno.EACCES, NO_CREDENTIALS, os.fsdecode(url)) from None
        self.settings[scheme, bucket] = settings
        try:
            opened: Store = stores.get(scheme, HTTPStore)(name, **settings)
        except Exception:  # obstore's, with values in its text
            what = f"cannot be opened: check the variables that configure {scheme}://, such as"
            of_scheme = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_NAME"}
            _refuse(url, f"{what} {of_scheme.get(scheme, 'AWS_REGION')}")
        return opened

    def _settings(self, scheme: str, name: str) -> dict[str, Any]:
        """The arguments of obstore's store, except for the name."""
        given: dict[str, Any] = {}
        client: dict[str, Any] = {}
        endpoint: str | None = name  # of a web server
        if scheme in _ENDPOINTS and (endpoint := self._endpoint or _endpoint_of(scheme)):
            given[_ENDPOINTS[scheme][0]] = endpoint
        if scheme == "s3":
            profile = Profile()
            variables = map(os.environ.get, ("AWS_DEFAULT_REGION", "AWS_REGION"))  # DALI's order
            regions = self._region, *variables, profile.settings.get("region"), "us-east-1"
            region = next(filter(None, regions))
            if _flag("DALI_S3_NO_VERIFY_SSL"):
                client["allow_invalid_certificates"] = True
            if scheme not in self._signing:
                asking = client | self.client
                self._signing[scheme] = signing(profile, self._anonymous, region, asking)
            given |= {"region": region} | self._signing[scheme]
        elif scheme in _ENDPOINTS and (
            self._anonymous or (scheme == "gs" and _flag("DALI_GCS_ANONYMOUS"))
        ):
            given["skip_signature"] = True
        elif scheme == "gs" and not any(it.startswith(_ACCOUNTS) for it in os.environ):
            if scheme not in self._signing:
                from .google import tokens  # loads google-auth

                keys = tokens()
                self._signing[scheme] = {"credential_provider": keys} if keys else {}
            given |= self._signing[scheme]
        if endpoint and endpoint.startswith("http://"):
            client["allow_http"] = True
        options = client | self.client
        if scheme not in _ENDPOINTS and not self._anonymous:
            options = hub.with_token(name, options)
        # obstore's retries leave out 425, and hedging would not see them.
        return given | {"client_options": options, "retry_config": {"max_retries": 0}}


def get(store: Store, key: str, options: GetOptions) -> GetResult:
    """Request an object. Raises obstore's errors, or EncodedError for compressed bytes."""
    answer = store.get(key, options=options)
    require_plain(store, answer.attributes.get("Content-Encoding", ""))
    return answer


def head(store: Store, key: str) -> ObjectMeta:
    """Request an object's metadata. Raises errors as `get()`, with the reason in their text."""
    try:
        meta = get(store, key, {"head": True}).meta
        if meta["size"]:
            return meta
    except Exception as error:
        if is_silent(error):
            store.get(key, options={"range": (0, 1)})  # its error has the reason
        if "MissingContentLength" not in str(error):
            raise
    return get(store, key, {}).meta  # of some servers, only GET has the size


def require_plain(store: Store, encoding: str) -> None:
    """Raise EncodedError for a Content-Encoding that compresses, unless `default_headers` ask."""
    if found := _compressions(encoding):
        headers = (store.client_options or {}).get("default_headers") or {}
        if found := found - _compressions(str(headers.get("accept-encoding"))):
            raise EncodedError.of(", ".join(sorted(found)))


def _compressions(header: str) -> set[str]:
    return {word.removeprefix("x-") for word in re.findall(r"[\w-]+", header.lower())} & _COMPRESSED


def origins() -> Iterator[DeviceStatus]:
    """List the sources of endpoints and credentials, without a request and without secrets.

    Google Cloud and Azure are listed only if their variables are set.
    """
    for scheme, starts in _VARIABLES.items():
        names = sorted(name for name in os.environ if name.startswith(starts))
        try:
            if scheme == "s3":
                profile = Profile()
                endpoint = _endpoint_of("s3") or "Amazon"
                yield DeviceStatus("s3://", f"{endpoint}, credentials: {source(profile)}")
            elif names:
                endpoint = _endpoint_of(scheme) or "the public endpoint"
                yield DeviceStatus(f"{scheme}://", f"{endpoint}, by {', '.join(names)}")
        except (PermissionError, ValueError) as error:
            what, _, remedy = str(error).partition("; ")
            no_keys = isinstance(error, PermissionError)
            kind = f"{endpoint}, no credentials" if no_keys else "object store"
            yield DeviceStatus(f"{scheme}://", kind, BackendUnavailable(what, remedy))


def split(url: bytes) -> tuple[str, str, str]:
    """Split a URL into scheme, bucket or host, and key of an object, or prefix of a root.

    Raises:
        ValueError: not the URL of an object; names the URL, unless this contains a password.
    """
    require_public(url)
    try:
        text = url.decode()
    except UnicodeDecodeError:
        _refuse(url, "is not UTF-8; rename the object")
    scheme, colon, rest = text.partition("://")
    if not colon:
        _refuse(url, "is a file, not an object; give either files or URLs")
    bucket, _, key = rest.partition("/")
    if not scheme.startswith("http"):
        if not _BUCKET.fullmatch(bucket):
            _refuse(url, "has no valid bucket name")
        return scheme, bucket, key
    if not _is_service(f"{scheme}://{bucket}"):
        _refuse(url, "has no valid host name")
    try:
        found = unquote(key, errors="strict")
    except UnicodeDecodeError:
        _refuse(url, "has escapes that are not UTF-8; rename the object")
    if "%2f" in key.lower():
        _refuse(url, "has the escape %2F, which obstore sends as '/'; rename the object")
    return scheme, bucket, found


def _refuse(url: bytes, what: str) -> NoReturn:
    raise ValueError(f"{os.fsdecode(url)!r} {what}") from None


def _is_service(url: str) -> bool:
    """Test for the URL of a server, with or without a path; obstore panics for any other URL."""
    match = _SERVICE.fullmatch(url)
    return match is not None and 0 < int(match[3] or 1) < 1 << 16


def _endpoint(url: str | None, source: str) -> str | None:
    if url and not (isinstance(url, str) and _is_service(url)):
        shown = "" if {"@", "?", "#"} & {*str(url)} else f", not {url!r}"  # may have a password
        raise ValueError(f"{source} must be like http://host:port{shown}")
    return url or None


def _endpoint_of(scheme: str) -> str | None:
    """The endpoint of the environment or the profile; None: the public one."""
    for name in _ENDPOINTS[scheme][1:]:
        if found := _endpoint(os.environ.get(name), name):
            return found
    url = Profile().settings.get("endpoint_url") if scheme == "s3" else None
    return _endpoint(url, "endpoint_url of the profile")


def _flag(name: str) -> bool:
    """Test if an environment variable is a number other than 0, by DALI's rules."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get(name, ""))
    return number is not None and int(number[0]) != 0
