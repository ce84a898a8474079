"""Lists of objects, and the capability of a backend to read objects.

Imported only if samples are objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from ._types import IntArray

Versions: TypeAlias = npt.NDArray[np.bytes_]
"""bytes[n] (numpy's S): the version of each object's bytes, usually its ETag."""

Part: TypeAlias = tuple[bytes, int, int | None]
"""The URL of an object, a position in it, and at most how many bytes from there; None: all."""

Known: TypeAlias = tuple[int, bytes]
"""The size in bytes and the version of an object whose URL names its content, as a commit does."""

PINNED = b"pinned "
"""The beginning of such a version. It is in indexes and caches, and not compared with ETags."""


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


@runtime_checkable
class SupportsPinned(Protocol):
    """Access to a store that need not ask for what is known."""

    def pinned(self, known: Mapping[bytes, Known]) -> AbstractContextManager[Remote]:
        """Access that returns what is known of objects, by their URLs, and reads their content."""


@runtime_checkable
class SupportsRemote(Protocol):
    """A backend that lists objects, and reads the indexes of containers in a store."""

    @classmethod
    def remote(cls, **options: Any) -> Remote | None:
        """Return the access to the store; `options` as in `Reader.tree()`."""


def remote_of(backend: object, **options: Any) -> Remote | None:
    """Return the `Remote` of a backend, or None: it reads only objects that the user names."""
    return backend.remote(**options) if isinstance(backend, SupportsRemote) else None


@contextmanager
def knowing(remote: Remote | None, known: Mapping[bytes, Known]) -> Iterator[Remote | None]:
    """Yield access by which nothing that is known is asked for, if the store supports that."""
    store: object = remote
    if known and isinstance(store, SupportsPinned):
        with store.pinned(known) as found:
            yield found
    else:
        yield remote
