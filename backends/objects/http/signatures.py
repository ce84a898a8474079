"""Paths and signatures of requests; those of Azure are in the paths.

https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import obstore
from obstore.store import AzureStore

from ..keys import Credential

LIFE = timedelta(minutes=15)  # of a signed URL
_SAS = "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN"

Address: TypeAlias = Callable[[list[str]], Sequence[str]]
Current: TypeAlias = Callable[[], Credential | None]
Signer: TypeAlias = Callable[[Sequence[str]], tuple[list[str], list[str]] | None]


def quoted(base: str, plain: str = "/~", query: str = "") -> Address:
    """Make a function that quotes keys, except for some characters, below a URL."""
    root = urlsplit(base).path
    return lambda keys: [root + quote(key, safe=plain) + query for key in keys]


def by_keys(current: Current, region: str, host: str) -> Signer:
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


def by_token(current: Current) -> Signer:
    """Make a function to sign requests by the current token. It keeps no secret."""

    def sign(paths: Sequence[str]) -> tuple[list[str], list[str]] | None:
        if not (credential := current()):
            return None
        return [f"Authorization: Bearer {credential['token']}"], [""] * len(paths)

    return sign


def azure(
    store: Any, container: str, settings: Mapping[str, Any], anonymous: bool
) -> tuple[str, Address] | None:
    """The URL of a container, and a function for the paths of blobs; None if only obstore can.

    Obstore signs these by an account key, or by a user delegation key, which it requests once in
    several hours. A shared access signature of the user is sent as it is.
    """

    def address(keys: list[str]) -> list[str]:
        try:
            urls = obstore.sign(store, "GET", keys, LIFE)
        except Exception:  # obstore reads, too, and says why it cannot
            return []
        return [url[url.index("/", len("https://")) :] for url in urls]

    query = next(filter(None, map(os.environ.get, _SAS)), "").lstrip("?")
    if signed := address(["key"]):
        known = store
    elif anonymous or (query.isascii() and query.isprintable() and query):
        known = AzureStore(container, **settings, account_key="eA==")
    else:
        return None
    base = obstore.sign(known, "GET", "key", LIFE).partition("key?")[0]
    return base, address if signed else quoted(base, query="" if anonymous else f"?{query}")
