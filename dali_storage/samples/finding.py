"""The samples of `fn.readers.file`, wherever they are; `listed` has indexes and object stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..contract._types import PathLike
from ..contract.catalog import Catalog, Tree
from ..contract.objects import require_public, scheme
from .discovery import Directory, Filters, discover, from_tree
from .locations import is_index, local_path, location
from .patterns import path_bytes

if TYPE_CHECKING:
    from ..contract.remote import Remote

_LISTED = "s3", "gs", "az"  # web servers have no lists
_OF_LISTS = "files", "file_list", "labels"


def find(
    known: Callable[[], Tree | None] = lambda: None,
    remote: Remote | None = None,
    **arguments: Any,
) -> Catalog:
    """Find the samples of `fn.readers.file` for its arguments; None means not given.

    Without file_root, files and file_list, the samples come from `known()`. `remote` lists objects.

    Raises:
        ValueError, OSError, TypeError: as discover(), or those of `listed`.
    """
    root = arguments.get("file_root")
    if root is not None and not any(arguments.get(it) is not None for it in _OF_LISTS):
        filters = {name: it for name, it in arguments.items() if name in Filters.__annotations__}
        if is_index(root) or scheme(path_bytes("file_root", root)):
            from . import listed

            if is_index(root):
                return listed.from_index(root, **filters)
            return listed.from_store(remote, root, **filters)
        return from_tree(Directory(root), **filters)
    return discover(known, **arguments)


def root_of(file_root: PathLike) -> bytes:
    """Return the root of the samples: file_root, or the indexed root of an index."""
    path = path_bytes("file_root", file_root)
    if not is_index(path):
        return path
    from .index_file import CatalogFile

    return CatalogFile(path).root


def locations(
    file_root: PathLike | None, files: Sequence[bytes] | None, file_list: PathLike | None
) -> list[bytes]:
    """Return a path or URL of each argument, from which the choice of a backend follows.

    Raises:
        ValueError, TypeError: file_root is neither a path nor a URL, or file_list is not a path.
    """
    found = [] if file_root is None else [location("file_root", root_of(file_root))]
    found += files[:1] if files else []  # the others are of the same kind
    # A pipe is read once, when the samples are found; a list that cannot be read is an error then.
    if file_list is not None and os.path.isfile(path := local_path("file_list", file_list)):
        with suppress(OSError), open(path, "rb") as lines:
            found += [next(filter(bytes.strip, lines), b"")]
            if scheme(found[-1]):
                require_public(found[-1].rstrip())
    return found
