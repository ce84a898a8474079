"""Where a URL leads: to the store of a bucket, and to a key there, exactly as it is written."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import unquote, urlsplit

from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from ...errors import BackendUnavailable
from .credentials import Profile, signing
from .errors import NO_CREDENTIALS, is_silent, mapped

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import RetryConfig

Store: TypeAlias = S3Store | GCSStore | AzureStore | HTTPStore

_ONCE: RetryConfig = {"max_retries": 0}
"""No retries of obstore's own: they leave out 425, and hedging would know nothing of them."""

_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("DALI_GCS_ENDPOINT_URL", "GOOGLE_BASE_URL"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The variables that name an endpoint; the first one counts."""

_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"  # has the containers
_OPENED_BY: set[int] = set()  # processes; forks inherit it

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]+")
_ODD = re.compile(r"(^|/)\.{0,2}(/|$)|[\x00-\x1f\x7f]")


class Stores:
    """The stores of all buckets that are read, opened when they are first needed.

    Any number of threads may use it. Credentials are in obstore's objects only.
    """

    def __init__(
        self,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        anonymous: bool = False,
        timeout: float = 30.0,
        client_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens nothing.

        Args:
            endpoint: URL of the service; by default as the environment or the profile says.
            region: of the buckets, for S3; by default as the environment or the profile says.
            anonymous: requests are not signed: public objects.
            timeout: seconds for a request and its whole answer.
            client_options: more of `obstore.store.ClientConfig`, such as `proxy_url` or
                `root_certificate`. No secrets: they belong into the environment.

        Raises:
            ValueError: an option is wrong.
        """
        if not timeout > 0:
            raise ValueError(f"timeout must be positive, in seconds, not {timeout!r}")
        self._endpoint = _endpoint(endpoint, "endpoint")
        self._region = region
        self._anonymous = anonymous
        self._client = {"timeout": timedelta(seconds=timeout)} | dict(client_options or {})
        for name, value in (client_options or {}).items():
            _check_client_option(name, value)
        self._stores: dict[tuple[str, str], Store] = {}
        self._lock = threading.Lock()

    def locate(self, url: bytes) -> tuple[Store, str]:
        """The store and the key of an object.

        Keys are taken as they are written, but those of http:// and https://, which are quoted.

        Raises:
            ValueError: no object can have this URL, or its key cannot be asked for; names it.
            OSError: the store cannot be opened; names the URL.
            BackendUnavailable: a package is missing that gets the credentials.
            RuntimeError: this process was forked from one that has opened stores.
        """
        scheme, bucket, key = split(url)
        if _ODD.search(key):
            _refuse(url, "has an empty, '.' or '..' part, or control characters; rename the object")
        return self.bucket(scheme, bucket, url), key

    def place(self) -> bytes:
        """Tells apart services in which one URL names different objects. Has no secret in it."""
        endpoints = {scheme: self._endpoint or endpoint_of(scheme) for scheme in _ENDPOINTS}
        endpoints["s3"] = endpoints["s3"] or Profile().get("endpoint_url")
        return repr([*endpoints.values(), *map(os.environ.get, _ACCOUNT)]).encode()

    def bucket(self, scheme: str, bucket: str, url: bytes) -> Store:
        """The store of a bucket; errors name `url`."""
        store = self._stores.get((scheme, bucket))
        if store is None:
            with self._lock:
                store = self._stores.get((scheme, bucket))
                if store is None:
                    store = self._stores[scheme, bucket] = self._open(scheme, bucket, url)
        return store

    def close(self) -> None:
        """Forget all stores. Their connections end when nothing refers to them any more."""
        self._stores.clear()

    def _open(self, scheme: str, bucket: str, url: bytes) -> Store:
        _OPENED_BY.add(os.getpid())
        if len(_OPENED_BY) > 1:
            what = "objects were asked for before this process was forked, and would hang"
            raise RuntimeError(f"{what}; start processes by 'spawn' or 'forkserver', not by 'fork'")
        open_ = {"s3": self._s3, "gs": self._gs, "az": self._az}.get(scheme)
        try:
            if open_:
                return open_(bucket)
            endpoint = f"{scheme}://{bucket}/"
            return HTTPStore(endpoint, **self._common(endpoint))
        except (ValueError, BackendUnavailable):
            raise
        except PermissionError:
            raise PermissionError(errno.EACCES, NO_CREDENTIALS, os.fsdecode(url)) from None
        except Exception as error:  # obstore's
            raise mapped(error, url) from None

    def _common(self, endpoint: str | None) -> dict[str, Any]:
        client = {"allow_http": True} if (endpoint or "").startswith("http://") else {}
        return {"client_options": client | self._client, "retry_config": _ONCE}

    def _s3(self, bucket: str) -> Store:
        profile = Profile()
        endpoint = self._endpoint or endpoint_of("s3", profile)
        variables = map(os.environ.get, ("AWS_DEFAULT_REGION", "AWS_REGION"))  # in DALI's order
        regions = filter(None, (self._region, *variables, profile.get("region"), "us-east-1"))
        given: dict[str, Any] = {"region": next(regions)}
        if endpoint:
            given["aws_endpoint_url_s3"] = endpoint  # obstore reads it before all others
        common = self._common(endpoint)
        if _flag("DALI_S3_NO_VERIFY_SSL"):
            unchecked = {"allow_invalid_certificates": True}
            common["client_options"] = unchecked | common["client_options"]
        return S3Store(bucket, **common, **given, **signing(profile, self._anonymous))

    def _gs(self, bucket: str) -> Store:
        endpoint = self._endpoint or endpoint_of("gs")
        given: dict[str, Any] = {"base_url": endpoint} if endpoint else {}
        if self._anonymous or _flag("DALI_GCS_ANONYMOUS"):
            given["skip_signature"] = True
        return GCSStore(bucket, **self._common(endpoint), **given)

    def _az(self, container: str) -> Store:
        endpoint = self._endpoint or endpoint_of("az")
        given: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
        if self._anonymous:
            given["skip_signature"] = True
        emulator = os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true")
        common = self._common("http://" if emulator else endpoint)
        return AzureStore(container, **common, **given)

    def __reduce__(self) -> NoReturn:
        raise TypeError("the stores cannot be pickled: they hold credentials")


def head(store: Store, key: str) -> ObjectMeta:
    """What the store tells of an object.

    Raises:
        Exception: obstore's, with the reason in its text.
    """
    try:
        return store.head(key)
    except Exception as error:
        if is_silent(error):
            store.get(key, options={"range": (0, 1)})  # answers with the reason
        raise


def split(url: bytes) -> tuple[str, str, str]:
    """Scheme, bucket or host, and key of an object, or prefix of a root.

    Raises:
        ValueError: this cannot be the URL of an object; names it, unless it has a password in it.
    """
    try:
        text = url.decode()
    except UnicodeDecodeError:
        _refuse(url, "is not UTF-8; rename the object")
    scheme, _, rest = text.partition("://")
    bucket, _, key = rest.partition("/")
    if not scheme.startswith("http"):
        if not _BUCKET.fullmatch(bucket):
            _refuse(url, "has no valid name of a bucket")
        return scheme, bucket, key
    if "@" in bucket:
        raise ValueError("a URL has a name or password in it; take it out")
    if not _HOST.fullmatch(bucket):
        _refuse(url, "has no valid name of a host")
    if "?" in key or "#" in key:
        _refuse(url.partition(b"?")[0], "has a query or fragment; write %3F and %23 in names")
    return scheme, bucket, unquote(key)


def _refuse(url: bytes, what: str) -> NoReturn:
    raise ValueError(f"{os.fsdecode(url)!r} {what}")


def _endpoint(url: str | None, source: str) -> str | None:
    """Check the URL of an endpoint, because obstore panics."""
    if not url:
        return None
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and not parts.query and parts.port != 0
    except ValueError:  # a port that is no number
        right = False
    if not (right and _HOST.fullmatch(parts.netloc)):
        shown = "a URL with a password or query" if {"@", "?"} & {*url} else repr(url)
        raise ValueError(f"{source} must be like http://host:port, not {shown}")
    return url


def endpoint_of(scheme: str, profile: Profile | None = None) -> str | None:
    """The endpoint that the environment names, or the profile; None: the public one.

    Raises:
        ValueError: it is no URL of an endpoint.
    """
    named = ((os.environ.get(name), name) for name in _ENDPOINTS[scheme])
    found = next(filter(None, (_endpoint(*each) for each in named)), None)
    if found or profile is None:
        return found
    return _endpoint(profile.get("endpoint_url"), "endpoint_url of the profile")


def _flag(name: str) -> bool:
    """Whether an environment variable is a number but 0, as DALI reads it."""
    number = re.match(r"\s*[+-]?\d+", os.environ.get(name, ""))
    return number is not None and int(number[0]) != 0


def _check_client_option(name: str, value: Any) -> None:
    """Let obstore check it, but for its messages, which have the value in them."""
    options: Any = {name: value}
    try:
        HTTPStore("http://localhost/", client_options=options)
    except Exception:
        what = f"obstore does not take client_options[{name!r}]"
        raise ValueError(f"{what}; see obstore.store.ClientConfig") from None
