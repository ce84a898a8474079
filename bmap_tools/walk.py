"""Listing of the files below a directory, in the order of a map."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from .console import reason


@dataclass(frozen=True, slots=True)
class Folder:
    """Files of one directory.

    Attributes:
        prefix: the directory's path from the root, with a slash at the end; empty for the root.
        names: the names of the files, in byte order, separated by NUL: one object per file would
            need too much memory.
        special: names of files that must not be opened: opening a FIFO wakes up its writer.
    """

    prefix: bytes
    names: bytes
    special: frozenset[bytes] = frozenset()

    def __len__(self) -> int:
        return self.names.count(b"\0") + 1

    def split(self) -> list[bytes]:
        """The names."""
        return self.names.split(b"\0")

    def parts(self, length: int) -> Iterator[Folder]:
        """Divide the folder into folders of at most `length` files."""
        names = self.split()
        for start in range(0, len(names), length):
            part = names[start : start + length]
            yield Folder(self.prefix, b"\0".join(part), self.special)


@dataclass(slots=True)
class Walk:
    """The files and directories below a root.

    Attributes:
        folders: the directories with files, each followed by its sub-directories, in byte order of
            their names.
        directories: the names of all directories directly in the root, in byte order.
        unreadable: directory -> the error when listing.
    """

    folders: list[Folder] = field(default_factory=list)
    directories: tuple[bytes, ...] = ()
    unreadable: dict[bytes, str] = field(default_factory=dict)


def walk(root: bytes, *, without: bytes | None = None) -> Walk:
    """Find all files below a directory, except the file at the path `without`.

    Links to directories are followed, except in a cycle. A directory directly in the root is always
    listed, even a link to the root: its files are the samples of a class. FIFOs, sockets and
    devices are not samples and are omitted. Links to them are included as special files.

    Raises:
        OSError: the root itself cannot be listed.
    """
    tree = Walk()
    omitted = None if without is None else (_identity(os.path.dirname(without)), without)
    pending: list[tuple[bytes, frozenset[tuple[int, int]]]] = [(b"", frozenset())]
    while pending:
        path, above = pending.pop()
        try:
            identity = _identity(os.path.join(root, path))
            if b"/" in path and identity in above:
                continue
            names, special, below = _list(os.path.join(root, path))
        except OSError as error:
            if not path:
                raise
            tree.unreadable[path] = reason(error)
            continue
        if omitted is not None and omitted[0] == identity:
            names = [name for name in names if name != os.path.basename(omitted[1])]
        prefix = path + b"/" if path else b""
        if not path:
            tree.directories = tuple(sorted(below))
        if names:
            tree.folders.append(Folder(prefix, b"\0".join(sorted(names)), frozenset(special)))
        inside = above | {identity}
        pending += [(prefix + name, inside) for name in sorted(below, reverse=True)]
    return tree


def folders(names: Iterable[bytes], special: frozenset[bytes] = frozenset()) -> list[Folder]:
    """Group known files, paths from the root in the order of a map, into folders."""
    found = []
    for prefix, group in groupby(names, lambda name: name[: name.rfind(b"/") + 1]):
        own = [name[len(prefix) :] for name in group]
        own_special = frozenset(name for name in own if special and prefix + name in special)
        found.append(Folder(prefix, b"\0".join(own), own_special))
    return found


def _list(directory: bytes) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """List the names of a directory's files, of special ones among them, and of sub-directories."""
    names, special, directories = [], [], []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                names.append(entry.name)
            elif entry.is_dir(follow_symlinks=False) or os.path.isdir(entry.path):
                directories.append(entry.name)
            elif entry.is_symlink():  # for example to a special file, which itself is not a sample
                names.append(entry.name)
                if not os.path.isfile(entry.path):
                    special.append(entry.name)
    return names, special, directories


def _identity(directory: bytes) -> tuple[int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino
