"""Which files there are below a directory, in the order that a map lists them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeAlias

from .report import reason

_Chain: TypeAlias = tuple[tuple[int, int], "_Chain"] | None
"""A directory (st_dev, st_ino) and those that it is in."""


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of one directory.

    Attributes:
        prefix: what stands before their names: the directory's path from the root, and a slash;
            empty for the root.
        names: of the files in byte order, separated by NUL: an object a file would be too much.
        closed: those of the names that must not be opened: to open a FIFO wakes its writer up.
    """

    prefix: bytes
    names: bytes
    closed: frozenset[bytes] = frozenset()

    def __len__(self) -> int:
        return self.names.count(b"\0") + 1

    def split(self) -> list[bytes]:
        """The names."""
        return self.names.split(b"\0")

    def only(self, names: Sequence[bytes]) -> Folder:
        """Some of its files."""
        return Folder(self.prefix, b"\0".join(names), self.closed)

    def parts(self, length: int) -> Iterator[Folder]:
        """The same files in folders of at most `length`."""
        if len(self) <= length:
            yield self
            return
        names = self.split()
        for start in range(0, len(names), length):
            yield self.only(names[start : start + length])


@dataclass(slots=True)
class Tree:
    """What was found below a root.

    Attributes:
        folders: those that have files. A directory's own files come before those of its
            sub-directories, and these in byte order of their names.
        directories: the names of all directories directly in the root, in byte order.
        unreadable: the directories that could not be listed, and why.
    """

    folders: list[Folder] = field(default_factory=list)
    directories: tuple[bytes, ...] = ()
    unreadable: dict[bytes, str] = field(default_factory=dict)


def directories(root: bytes) -> tuple[bytes, ...]:
    """The names of all directories directly in `root`, and of links to one, in byte order.

    Raises:
        OSError: it cannot be listed.
    """
    return tuple(sorted(_list(root)[2]))


def walk(root: bytes, *, without: bytes | None = None) -> Tree:
    """Find all files below a directory. Links to directories are followed, but never in a circle.

    FIFOs, sockets and devices are no samples and left out. Links to them are in it, not to be
    opened.

    A directory directly in the root is always listed, for its files are samples of a class of its
    own even where it is a link to the root.

    Args:
        root: the directory.
        without: the path of a file that is left out, wherever it is.

    Raises:
        OSError: the root itself cannot be listed.
    """
    tree = Tree()
    unwanted = None if without is None else (_identity(os.path.dirname(without)), without)
    waiting: list[tuple[bytes, _Chain]] = [(b"", None)]
    while waiting:
        path, above = waiting.pop()
        try:
            identity = _identity(os.path.join(root, path))
            if b"/" in path and _contains(above, identity):
                continue
            names, closed, below = _list(os.path.join(root, path))
        except OSError as error:
            if not path:
                raise
            tree.unreadable[path] = reason(error)
            continue
        if unwanted is not None and unwanted[0] == identity:
            names = [name for name in names if name != os.path.basename(unwanted[1])]
        prefix = path + b"/" if path else b""
        if not path:
            tree.directories = tuple(sorted(below))
        if names:
            tree.folders.append(Folder(prefix, b"\0".join(sorted(names)), frozenset(closed)))
        chain = (identity, above)
        waiting += [(prefix + name, chain) for name in sorted(below, reverse=True)]
    return tree


def folders(names: Iterable[bytes], closed: frozenset[bytes] = frozenset()) -> list[Folder]:
    """The same for files whose names from the root are known, in the order of a map.

    Args:
        names: in the order of a map.
        closed: those that must not be opened.
    """
    found = []
    for prefix, group in groupby(names, _prefix):
        own = [name[len(prefix) :] for name in group]
        odd = frozenset(name for name in own if closed and prefix + name in closed)
        found.append(Folder(prefix, b"\0".join(own), odd))
    return found


def order(name: bytes) -> tuple[Sequence[bytes], bytes]:
    """The key that sorts files' names from the root as a map lists them."""
    prefix = _prefix(name)
    return prefix.split(b"/"), name[len(prefix) :]


def _prefix(name: bytes) -> bytes:
    return name[: name.rfind(b"/") + 1]


def _list(directory: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The names of its files, of those among them not to be opened, of its sub-directories."""
    names, closed, directories = [], [], []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                names.append(entry.name)
                continue
            kind = stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else _target(entry)
            if kind == stat.S_IFDIR:
                directories.append(entry.name)
            elif entry.is_symlink():  # FIFOs, sockets and devices are no samples, links to them are
                names.append(entry.name)
                if kind != stat.S_IFREG:
                    closed.append(entry.name)
    return names, closed, directories


def _target(entry: os.DirEntry[bytes]) -> int | None:
    """What the target of a link is; None where that cannot be said."""
    try:
        return stat.S_IFMT(entry.stat().st_mode)
    except OSError:
        return None


def _identity(directory: bytes) -> tuple[int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino


def _contains(chain: _Chain, identity: tuple[int, int]) -> bool:
    while chain is not None:
        if chain[0] == identity:
            return True
        chain = chain[1]
    return False
