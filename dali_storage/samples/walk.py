"""Lists files below a directory or a URL, at any depth, and makes samples of several of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog, join_path
from ..contract.errors import named
from ..contract.objects import Remote, Versions, scheme
from .discovery import require_remote


class FoundFiles:
    """Files that were listed, in columns.

    Attributes:
        root: the directory or the URL that names are relative to.
        names: of the files, in the order in which they were listed.
    """

    def __init__(self, root: bytes, remote: Remote | None) -> None:
        """`remote` lists objects."""
        self.root, self._remote = root, remote
        self.names = list[bytes]()
        self._sizes, self._versions = list[IntArray](), list[Versions]()
        self._parts = dict[bytes, range]()

    def below(self, directory: bytes) -> range:
        """The numbers of the files below a directory, which is "" or ends with a slash.

        It is listed by the first call, and so are those in it: ask for the outer ones first. Files
        are regular ones, and links to anything but a directory. Links to directories are followed;
        those in a circle are an OSError.
        """
        if directory not in self._parts:
            first = len(self.names)
            for name in self._level(directory):
                self.below(directory + name + b"/")
            self._parts[directory] = range(first, len(self.names))
        return self._parts[directory]

    def _level(self, directory: bytes) -> list[bytes]:
        """List the files that are directly in a directory; returns the directories in it."""
        path, inner = join_path(self.root, directory) or b".", list[bytes]()

        def choose(names: list[bytes]) -> list[bytes]:
            inner.extend(names)
            return []

        if scheme(path):
            self.objects(path, choose, directory)
            return inner
        with named(), os.scandir(path) as entries:
            for each in entries:
                if is_directory(each):
                    inner.append(each.name)
                elif each.is_symlink() or each.is_file():
                    self.names.append(directory + each.name)
        return inner

    def objects(
        self, url: bytes, choose: Callable[[list[bytes]], list[bytes]], below: bytes = b""
    ) -> None:
        """Add what `Remote.listing()` lists. `below` is the URL relative to the root."""
        found = require_remote(url, self._remote).listing(url, choose)
        spans = pairwise(found.offsets.tolist())
        self.names += [below + found.names[start:stop] for start, stop in spans]
        self._sizes.append(found.sizes)
        self._versions.append(found.versions)

    def catalog(self, rows: Sequence[int], pieces: int, labels: Iterable[int] = ()) -> Catalog:
        """Samples of `pieces` files each, which are given by their numbers."""
        names = [self.names[row] for row in rows]
        found = replace(Catalog.from_names(names, labels, self.root), pieces=pieces)
        if not self._sizes:
            return found
        sizes, versions = np.concatenate(self._sizes), np.concatenate(self._versions)
        return replace(found, sizes=sizes[rows], versions=versions[rows])


def is_directory(entry: os.DirEntry[bytes]) -> bool:
    """Whether it is a directory or leads to one; raises OSError if the links of its path circle."""
    try:
        return entry.is_dir()
    except OSError:
        directory, name = os.path.split(entry.path)
        if os.path.isdir(os.path.join(os.path.realpath(directory), name)):
            raise
        return False  # a link to itself, or to what cannot be accessed
