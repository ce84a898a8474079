"""URLs of objects, in object stores or web servers."""

from __future__ import annotations

import os
import re

SCHEMES = ("s3", "gs", "az", "http", "https")
"""The schemes of the URLs that a backend may read; in lower case, as in DALI."""

_URL = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://")
_KEYED = "s3", "gs", "az"  # a "?" is part of the key
_PASSWORD = re.compile(rb"[^/]*://([^/]*@|[^/\[]*:(?!\d*(/|$)))")  # or one with a slash in it
_SIGNATURE = re.compile(rb"[?&][\w-]*sig(nature)?=", re.IGNORECASE)


def scheme(name: bytes) -> str:
    """Return the scheme of a URL, in its spelling; "" for the path of a file."""
    match = _URL.match(name)
    return match[1].decode() if match else ""


def full_path(path: bytes) -> str:
    """Make a path absolute; return a URL unchanged."""
    return os.fsdecode(path if scheme(path) else os.path.abspath(path))


def require_public(url: bytes) -> None:
    """Refuse a URL with a password, a signature or, on the web, a query, and show none of them."""
    if _PASSWORD.match(url):
        raise ValueError(f"a URL of {scheme(url)}:// has a name, key or password in it; remove it")
    shown, *query = re.split(rb"[?#]", url, maxsplit=1)
    if query and (scheme(url).lower() not in _KEYED or _SIGNATURE.search(url)):
        what = f"{os.fsdecode(shown)!r} has a query, a fragment or a signature"
        raise ValueError(f"{what}; remove it, and write %3F and %23 in the names of files")
