"""The samples of a data set. Names are bytes, because file names need not be valid text."""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ._types import IntArray
from .errors import named, os_error
from .objects import Versions, scheme
from .ranges import Ranges


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Catalog:
    """The samples in their order, in columns: 12 bytes per sample, and the names of the files.

    A sample is what a backend reads at a time: a whole file or, in a catalog with `ranges`, a range
    of one. DALI gets *delivered samples*. Usually the two are the same, but in some containers a
    delivered sample has several *pieces*, such as an image and a label. Delivered sample i consists
    of the samples i * pieces to (i + 1) * pieces - 1 of the catalog.

    Attributes:
        root: the directory or the URL that names are relative to; empty for the current directory,
            or if the names are URLs.
        names: the names of all files, one after another, without separators; none is empty. Bytes,
            or memory that an index is mapped to.
        offsets: int64[files + 1], bytes: the name of file i is `names[offsets[i]:offsets[i + 1]]`.
        labels: int32[n], one for each delivered sample; empty if these have none.
        ranges: where the samples are in the files; None if each is a whole file.
        pieces: how many samples of the catalog make up a delivered one.
        containers: int64[k], how many delivered samples each container has; None if there are none.
        sizes: int64[files], bytes, as listed; None for files, whose sizes their backend looks up.
        versions: bytes[files], what identifies the listed content of each; None as `sizes`.
        states: int64[files, 4], what files were before somebody looked into them for the ranges,
            see `state_of()`; zeros for other files. None: nobody did. A file that is another one
            when it is read is refused.
        guards: bytes that files must have while samples of them are read, and where: for formats
            whose writers may leave the time of modification as it was. By the number of the file;
            of objects they are not compared. None: there are none.
    """

    root: bytes
    names: bytes | memoryview
    offsets: IntArray
    labels: npt.NDArray[np.int32]
    ranges: Ranges | None = None
    pieces: int = 1
    containers: IntArray | None = None
    sizes: IntArray | None = None
    versions: Versions | None = None
    states: IntArray | None = None
    guards: Mapping[int, Sequence[tuple[int, bytes]]] | None = None
    # Not an argument: a copy with other columns, as by replace(), must not have it.
    _checksum: int | None = field(default=None, init=False, repr=False)

    @classmethod
    def from_names(
        cls, names: Sequence[bytes], labels: Iterable[int], root: bytes = b""
    ) -> Catalog:
        """A catalog of n names, none of them empty, and their n labels. Nothing is checked."""
        builder = CatalogBuilder()
        builder.extend(names, labels)
        return builder.build(root)

    def __len__(self) -> int:
        return self.file_count if self.ranges is None else len(self.ranges)

    @property
    def file_count(self) -> int:
        """How many files there are; without ranges, as many as samples."""
        return len(self.offsets) - 1

    @property
    def delivered(self) -> int:
        """How many samples are delivered to DALI in an epoch."""
        return len(self) // self.pieces

    def pieces_of(self, delivered: IntArray) -> IntArray:
        """int64[n * pieces], the samples that make up n delivered ones, in their order."""
        if self.pieces == 1:
            return delivered
        return (delivered[:, None] * self.pieces + np.arange(self.pieces)).ravel()

    def files(self, samples: IntArray) -> IntArray:
        """int64[n], the file of each of `samples`."""
        return samples if self.ranges is None else self.ranges.files_of(samples)

    def starts(self, samples: IntArray) -> IntArray:
        """int64[n], bytes into its file where each of `samples` starts."""
        return np.zeros_like(samples) if self.ranges is None else self.ranges.starts[samples]

    def name(self, sample: int) -> bytes:
        """The name of a sample's file as it was found or given: DALI's source_info."""
        return self.file_name(self._file(sample))

    def path(self, sample: int) -> bytes:
        """The path of a sample's file, see `join_path()`."""
        return self.file_path(self._file(sample))

    def file_name(self, file: int) -> bytes:
        """The name of a file."""
        return bytes(self.names[self.offsets[:-1][file] : self.offsets[1:][file]])

    def file_path(self, file: int) -> bytes:
        """The path of a file."""
        return join_path(self.root, self.file_name(file))

    def where(self, sample: int) -> str:
        """What an error says of a sample in addition to the path of its file; "" if it is a file.

        For example "sample 17: 97,500 bytes at 512", with the number of the delivered sample.
        """
        if self.ranges is None:
            return ""
        start, size = int(self.ranges.starts[sample]), int(self.ranges.sizes[sample])
        return f"sample {sample // self.pieces}: {size:,} bytes at {start:,}"

    def checksum(self) -> int:
        """A CRC-32 of the names, the labels, the guards, and where samples are in the files."""
        if self._checksum is not None:
            return self._checksum
        labels = np.ascontiguousarray(self.labels).data
        checksum = zlib.crc32(labels, zlib.crc32(self.names))
        checksum = zlib.crc32(np.ascontiguousarray(self.offsets).data, checksum)
        if (ranges := self.ranges) is not None:
            for column in (ranges.runs, ranges.files, ranges.starts, ranges.sizes):
                checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
        for guards in (self.guards or {}).values():
            checksum = zlib.crc32(b"".join(content for _, content in guards), checksum)
        return checksum

    def altered(self, files: Iterable[int]) -> list[int]:
        """Those of `files` that lack one of their guards; errors name the path of the file.

        They are read through the page cache, in which all writers of a file meet.
        """
        guards = self.guards or {}
        return [it for it in files if it in guards and not _has(self.file_path(it), guards[it])]

    def knowing(self, checksum: int) -> Catalog:
        """This catalog, which is new, and need not compute its checksum any more."""
        object.__setattr__(self, "_checksum", checksum)
        return self

    def paths(self, samples: IntArray) -> list[bytes]:
        """The paths of the files of `samples` (int64[n]), in their order."""
        return self.file_paths(self.files(samples))

    def file_paths(self, files: IntArray) -> list[bytes]:
        """The paths of `files` (int64[n], indices), in their order."""
        # Called for every batch, so there is little work per file.
        starts, stops = self.offsets[:-1][files], self.offsets[1:][files]
        names, prefix = self.names, _prefix(self.root)
        ranges = zip(starts.tolist(), stops.tolist(), strict=True)
        if (np.frombuffer(names, np.uint8)[starts] == ord("/")).any():
            return [_join(prefix, bytes(names[start:stop])) for start, stop in ranges]
        return [prefix + names[start:stop] for start, stop in ranges]

    def __reduce__(self) -> tuple[Any, ...]:
        """Memory that is mapped is copied: it cannot be pickled."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return partial(type(self), **values | {"names": bytes(self.names)}), ()

    def _file(self, sample: int) -> int:
        return int(self.files(np.array([sample]))[0])


class CatalogBuilder:
    """Collects samples for a catalog, without a Python object for each."""

    def __init__(self) -> None:
        self._names = bytearray()
        self._sizes = array("q")
        self._labels = array("q")

    def __len__(self) -> int:
        return len(self._labels)

    def append(self, name: bytes, label: int) -> None:
        """Add one sample."""
        self._names += name
        self._sizes.append(len(name))
        self._labels.append(label)

    def extend(self, names: Sequence[bytes], labels: Iterable[int], prefix: bytes = b"") -> None:
        """Add n samples, whose names are `prefix` and one of `names`."""
        for start in range(0, len(names), 4096):  # in parts: join() needs 80 bytes for each piece
            self._names += prefix.join([b"", *names[start : start + 4096]])
        self._sizes.extend(map(len(prefix).__add__, map(len, names)))
        self._labels.extend(labels)

    def build(self, root: bytes) -> Catalog:
        """The catalog of the samples added so far."""
        offsets = np.zeros(len(self._sizes) + 1, np.int64)
        np.cumsum(self._sizes, out=offsets[1:])
        # astype() keeps the low 32 bits, as DALI does when it converts a long to an int.
        labels = np.asarray(self._labels).astype(np.int32)
        return Catalog(root, bytes(self._names), offsets, labels)


def state_of(status: os.stat_result) -> list[int]:
    """What tells a file from what it was: inode, size in bytes, time of modification in s and ns.

    Each is an int64, as the words of struct statx are: large inodes are negative.
    """
    inode = status.st_ino - (status.st_ino >> 63 << 64)
    return [inode, status.st_size, *divmod(status.st_mtime_ns, 10**9)]


def open_regular(path: bytes) -> io.FileIO:
    """A file, without a buffer; an OSError if it is no regular one: a pipe may wait for ever."""
    with named(path):
        file = io.FileIO(path, opener=lambda it, flags: os.open(it, flags | os.O_NONBLOCK))
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise os_error(errno.EINVAL, path, ": not a regular file")
    return file


def _has(path: bytes, guards: Sequence[tuple[int, bytes]]) -> bool:
    with open_regular(path) as file, named(path):
        return all(os.pread(file.fileno(), len(it), at) == it for at, it in guards)


class Tree(Protocol):
    """A directory of class directories that anything can list; see `from_tree()`."""

    @property
    def root(self) -> bytes:
        """The path of the directory."""

    def directories(self) -> list[bytes]:
        """The names of the directories in the root, and of links to such, in any order."""

    def files(self, directory: bytes) -> list[bytes]:
        """The names of the files and links in one of `directories()`, in any order."""


def join_path(root: bytes, name: bytes) -> bytes:
    """The path of a name in the directory `root`, as in DALI: an absolute name is its own path.

    Below a URL, an absolute name is the key of an object of the bucket (of `az`, the container).
    """
    return _join(_prefix(root), name)


def _prefix(root: bytes) -> bytes:
    return root if not root or root.endswith(b"/") else root + b"/"


def _join(prefix: bytes, name: bytes) -> bytes:
    if not name.startswith(b"/"):
        return prefix + name
    if scheme(prefix):
        return b"/".join(prefix.split(b"/")[:3]) + name
    return name
