"""Lists files below a directory or a URL, at any depth, and makes samples of several files."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog, CatalogBuilder, join_path
from ..contract.errors import named
from ..contract.objects import scheme
from ..contract.remote import Remote, Versions
from .listed import require_remote
from .patterns import NameFilter


class FoundFiles:
    """Listed files, in columns.

    Attributes:
        root: the base of relative names: a directory or a URL.
        names: the names of the files, in the order of listing.
    """

    def __init__(self, root: bytes, remote: Remote | None) -> None:
        """`remote` lists objects."""
        self.root, self._remote = root, remote
        self.names = list[bytes]()
        self._sizes, self._versions = list[IntArray](), list[Versions]()
        self._parts = dict[bytes, range]()

    def below(self, directory: bytes) -> range:
        """Return the numbers of the files below a directory, which is "" or ends with a slash.

        The first call lists the directory and all below: ask for outer directories first. Files are
        regular files, and links to anything but a directory. Links to directories are followed; a
        circle of links is an OSError.
        """
        if directory not in self._parts:
            first = len(self.names)
            for name in self._level(directory):
                self.below(directory + name + b"/")
            self._parts[directory] = range(first, len(self.names))
        return self._parts[directory]

    def _level(self, directory: bytes) -> list[bytes]:
        """List the files directly in a directory; return its directories."""
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
        """Add the objects of `Remote.listing()`. `below` is the URL relative to the root."""
        found = require_remote(url, self._remote).listing(url, choose)
        spans = pairwise(found.offsets.tolist())
        self.names += [below + found.names[start:stop] for start, stop in spans]
        self._sizes.append(found.sizes)
        self._versions.append(found.versions)

    def catalog(self, rows: Sequence[int], pieces: int, labels: Iterable[int] = ()) -> Catalog:
        """Return samples of `pieces` files each, given by their numbers."""
        names = [self.names[row] for row in rows]
        found = replace(Catalog.from_names(names, labels, self.root), pieces=pieces)
        if not self._sizes:
            return found
        sizes, versions = np.concatenate(self._sizes), np.concatenate(self._versions)
        return replace(found, sizes=sizes[rows], versions=versions[rows])


def from_classes(root: bytes, classes: Iterable[bytes], choose: NameFilter) -> Catalog:
    """Return the chosen files below class directories, at any depth; labels number the classes.

    The files of a class are sorted as in torchvision's `ImageFolder`: by directory, then by name.
    """
    builder = CatalogBuilder()
    for label, name in enumerate(classes):
        found = FoundFiles(root, None)
        found.below(name + b"/")
        files = choose(found.names)
        files.sort(key=lambda file: file.rpartition(b"/"))
        builder.extend(files, array("q", [label]) * len(files))
    return builder.build(root)


def is_directory(entry: os.DirEntry[bytes]) -> bool:
    """Return whether an entry is or leads to a directory; raise OSError for a circle of links."""
    try:
        return entry.is_dir()
    except OSError:
        directory, name = os.path.split(entry.path)
        if os.path.isdir(os.path.join(os.path.realpath(directory), name)):
            raise
        return False  # a link to itself, or to an inaccessible target
