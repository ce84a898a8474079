"""The names of files and roots that arguments give: local paths, and URLs of objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..contract._types import PathLike
from ..contract.objects import SCHEMES, require_public, scheme
from .index_file import CatalogFile
from .patterns import PATH_TYPES, as_list, path_bytes


def local_path(argument: str, value: Any) -> bytes:
    """A path as bytes.

    Raises:
        ValueError, TypeError: it is not a local path; names the argument.
    """
    path = location(argument, value)
    if scheme(path):
        what = f"{argument} must be a local path, not {os.fsdecode(path)!r}"
        raise ValueError(f"{what}: mount or copy the data, and give its local path")
    return path


def location(argument: str, value: Any) -> bytes:
    """A path or a URL as bytes.

    Raises:
        ValueError, TypeError: it is neither, or its scheme is not known; names the argument.
    """
    path = path_bytes(argument, value)
    require_known(argument, path)
    if b"\0" in path:
        raise ValueError(f"{argument} must be a path without NUL, not {path!r}")
    return path


def file_names(argument: str, files: PathLike | Iterable[PathLike]) -> list[bytes]:
    """The names of files that are given by an argument: one or several paths, or URLs.

    Raises:
        ValueError: there are none; one is empty, has a NUL or an unknown scheme; or there are both
            paths and URLs.
        TypeError: one is not a path.
    """
    names = [path_bytes(argument, name) for name in as_list(argument, files, PATH_TYPES)]
    if not names:
        raise ValueError(f"{argument} must not be empty")
    urls = sum(bool(require_known(argument, name)) for name in names if b"://" in name)
    for name in names:
        if not name or b"\0" in name:
            raise ValueError(f"{argument} must be names of files, not {os.fsdecode(name)!r}")
    if urls:
        require_urls(argument, urls, len(names), None)
    return names


def require_known(argument: str, name: bytes) -> str:
    """The scheme of a URL that a backend may read; "" if it is a path.

    Raises:
        ValueError: it is not known; or the URL has a password or a query.
    """
    found = scheme(name)
    if found:
        require_public(name)
    if found and found not in SCHEMES:
        remedy = "mount or copy the data, and give its local path"
        if found.lower() == "file":
            remedy = "leave out file://"
        elif found.lower() in SCHEMES:
            remedy = f"write {found.lower()}://"
        what = f"{argument} must be a local path or a URL of {', '.join(SCHEMES)}"
        raise ValueError(f"{what}, not {os.fsdecode(name)!r}: {remedy}")
    return found


def require_urls(argument: str, urls: int, count: int, root: bytes | None) -> None:
    """Refuse names of which some are URLs, unless all are and no root is given."""
    if urls < count:
        what = f"{argument}: {urls} of {count} names are URLs and the others are not"
        raise ValueError(f"{what}; give local paths or URLs, not both")
    if root is not None:
        what = f"the names in {argument} are URLs, and file_root is {os.fsdecode(root)!r}"
        raise ValueError(f"{what}; leave out file_root, or give names below it")


def is_index(file_root: PathLike) -> bool:
    """Whether file_root is a regular file; the only one that it may be is an index."""
    path = path_bytes("file_root", file_root)
    return not scheme(path) and os.path.isfile(path)


def root_of(file_root: PathLike) -> bytes:
    """Where the samples of file_root are: it itself or, of an index, the root that was indexed."""
    return CatalogFile(file_root).root if is_index(file_root) else os.fsencode(file_root)


def locations(
    file_root: PathLike | None, files: Sequence[bytes] | None, file_list: PathLike | None
) -> list[bytes]:
    """Those paths and URLs of these arguments that show who can read the samples.

    Raises:
        ValueError, TypeError: file_root is neither a path nor a URL, or file_list is no path.
    """
    found = [] if file_root is None else [location("file_root", root_of(file_root))]
    found += files[:1] if files else []  # the others are of the same kind
    if file_list is not None:
        path = os.fsdecode(local_path("file_list", file_list))
        # A list that cannot be read is an error when the samples are found.
        with suppress(OSError), open(path, "rb") as lines:
            found += [next(filter(bytes.strip, lines), b"")]
            if scheme(found[-1]):
                require_public(found[-1].rstrip())
    return found
