"""Objects behind URLs, in object stores or web servers, and the properties known to a backend.

A backend for objects sets `schemes`, and offers a `Remote` by `remote()`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ._types import IntArray

SCHEMES = ("s3", "gs", "az", "http", "https")
"""The schemes of the URLs that a backend may read; in lower case, as in DALI."""

Versions: TypeAlias = npt.NDArray[np.bytes_]
"""bytes[n] (numpy's S): the version of each object's bytes, usually its ETag."""

Part: TypeAlias = tuple[bytes, int, int | None]
"""The URL of an object, a position in it, and at most how many bytes from there; None: all."""

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


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """The objects below a root, in the order of their keys' bytes. In columns, as in a `Catalog`.

    Attributes:
        root: the listed URL.
        names: the names of n objects relative to the root, one after another.
        offsets: int64[n + 1], bytes: the name of object i is `names[offsets[i]:offsets[i + 1]]`.
        sizes: int64[n], bytes of each object.
        versions: bytes[n], the version of each object's content.
    """

    root: bytes
    names: bytes
    offsets: IntArray
    sizes: IntArray
    versions: Versions


class Remote(Protocol):
    """Access to a store: lists and reads its objects. Connections may stay open between calls."""

    def listing(self, root: bytes, choose: Callable[[list[bytes]], list[bytes]]) -> Listing:
        """List the objects `root/<file>` and `root/<class>/<file>`, neither higher nor deeper.

        `choose` selects names of classes; other classes are not listed.

        Raises:
            ValueError: the root, or the key of an object below it, is not valid; names it.
            OSError: the store cannot be asked; names the root.
        """

    def heads(self, urls: Sequence[bytes]) -> tuple[IntArray, Versions]:
        """Return the size (int64[n], bytes) and the version (bytes[n]) of each object.

        All requests run at once. The results are the columns `sizes` and `versions` of a `Catalog`.

        Raises:
            OSError: there is no such object, or the store cannot be asked; names the object.
        """

    def contents(self, parts: Sequence[Part]) -> list[bytes]:
        """Read small objects, such as indexes, or parts of objects; all requests run at once.

        Raises:
            OSError: an object cannot be read; names the first.
        """


class SupportsRemote:
    """The capability of a reader to read objects; absent by default.

    Attributes:
        schemes: the supported URL schemes, a subset of `SCHEMES`; empty (default): only files.
    """

    schemes: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def remote(cls, **options: Any) -> Remote | None:
        """Return the `Remote` that lists objects and reads container indexes, or None.

        `options` as in `Reader.tree()`. Without a `Remote`, a backend with `schemes` reads only the
        objects named by `files` or `file_list`.
        """
        return None
