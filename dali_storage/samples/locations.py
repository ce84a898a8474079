"""The names of files and roots in arguments: local paths, and URLs of objects."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ..contract._types import PathLike
from ..contract.objects import SCHEMES, require_public, scheme
from .patterns import PATH_TYPES, as_list, path_bytes


def local_path(argument: str, value: Any) -> bytes:
    """Return a local path as bytes.

    Raises:
        ValueError, TypeError: the value is not a local path; names the argument.
    """
    path = location(argument, value)
    if scheme(path):
        what = f"{argument} must be a local path, not {os.fsdecode(path)!r}"
        raise ValueError(f"{what}: mount or copy the data, and give its local path")
    return path


def location(argument: str, value: Any) -> bytes:
    """Return a path or a URL as bytes.

    Raises:
        ValueError, TypeError: the value is neither, or has an unknown scheme; names the argument.
    """
    path = path_bytes(argument, value)
    require_known(argument, path)
    if b"\0" in path:
        raise ValueError(f"{argument} must be a path without NUL, not {path!r:.80}")
    return path


def file_names(argument: str, files: PathLike | Iterable[PathLike]) -> list[bytes]:
    """Return the names of files in an argument: one or several paths, or URLs.

    Raises:
        ValueError: there are none; a name is empty, has a NUL or an unknown scheme; or there are
            both paths and URLs.
        TypeError: a name is not a path.
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
    """Return the scheme of a URL, which a backend may read; "" for a path.

    Raises:
        ValueError: the scheme is unknown; or the URL has a password or a query.
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
    """Raise ValueError if only some names are URLs, or if a root is given with URLs."""
    if urls < count:
        what = f"{argument}: {urls} of {count} names are URLs and the others are not"
        raise ValueError(f"{what}; give local paths or URLs, not both")
    if root is not None:
        what = f"the names in {argument} are URLs, and file_root is {os.fsdecode(root)!r}"
        raise ValueError(f"{what}; leave out file_root, or give names below it")


def is_index(file_root: PathLike) -> bool:
    """Return whether file_root is a regular file, which can only be an index."""
    path = path_bytes("file_root", file_root)
    return not scheme(path) and os.path.isfile(path)
