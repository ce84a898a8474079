"""The samples of a data set. Names are bytes, because file names need not be valid text."""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ._types import IntArray
from .errors import named, os_error
from .objects import scheme
from .ranges import Ranges
from .stages import yield_turn

if TYPE_CHECKING:
    from .remote import Versions


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class Catalog:
    """The samples in their order, in columns: 12 bytes per sample, and the names of the files.

    A sample is the unit of a backend's reads: a whole file or, in a catalog with `ranges`, a range
    of a file. DALI gets *delivered samples*. Usually the two are the same, but in some containers a
    delivered sample has several *pieces*, such as an image and a label. Delivered sample i consists
    of the samples i * pieces to (i + 1) * pieces - 1 of the catalog.

    Attributes:
        root: the directory or URL to which names are relative; empty for the current directory, or
            if the names are URLs.
        names: the names of all files, one after another, without separators; no name is empty.
            Bytes, or the memory of a mapped index.
        offsets: int64[files + 1], bytes: the name of file i is `names[offsets[i]:offsets[i + 1]]`.
        labels: int32[n], one for each delivered sample; empty if there are no labels.
        ranges: the place of each sample in the files; None if each sample is a whole file.
        pieces: the number of catalog samples in a delivered sample.
        containers: int64[k], the number of delivered samples in each container; None if there are
            no containers.
        sizes: int64[files], bytes, as listed; None for files, whose sizes the backend looks up.
        versions: bytes[files], the version of each file's listed content; None as for `sizes`.
        states: int64[files, 4], the state of each file before its ranges were looked up, see
            `state_of()`; zeros for other files. None: no states. A file with another state when
            read is refused.
        guards: bytes required in files while their samples are read, with their positions: for
            formats whose writers may preserve the modification time. Keyed by the number of the
            file; not compared for objects. None: no guards.
        source_info: for each file, a function that finds DALI's source_info of its samples, by
            their starts. Empty: unknown. None: made of the file's name and the start.
        sidecar: more about these samples, such as the rows of a manifest; keyed by the format that
            stores it, or by a name. Empty in a copy, as by replace(), which has other samples.
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
    source_info: Sequence[Callable[[], Mapping[int, bytes]]] | None = None
    sidecar: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def from_names(
        cls, names: Sequence[bytes], labels: Iterable[int], root: bytes = b""
    ) -> Catalog:
        """Make a catalog of n non-empty names and their n labels. Nothing is checked."""
        builder = CatalogBuilder()
        builder.extend(names, labels)
        return builder.build(root)

    def __repr__(self) -> str:
        return f"<Catalog: {self.delivered:,} samples of {os.fsdecode(self.root)!r}>"

    def __len__(self) -> int:
        return self.file_count if self.ranges is None else len(self.ranges)

    @property
    def file_count(self) -> int:
        """The number of files; without ranges, also the number of samples."""
        return len(self.offsets) - 1

    @property
    def delivered(self) -> int:
        """The number of samples delivered to DALI in an epoch."""
        return len(self) // self.pieces

    def pieces_of(self, delivered: IntArray) -> IntArray:
        """Return the samples of n delivered samples: int64[n * pieces], in their order."""
        if self.pieces == 1:
            return delivered
        return (delivered[:, None] * self.pieces + np.arange(self.pieces)).ravel()

    def files(self, samples: IntArray) -> IntArray:
        """Return the file of each of `samples`: int64[n]."""
        return samples if self.ranges is None else self.ranges.files_of(samples)

    def starts(self, samples: IntArray) -> IntArray:
        """Return the start of each of `samples` in its file: int64[n], bytes."""
        return np.zeros_like(samples) if self.ranges is None else self.ranges.starts[samples]

    def name(self, sample: int) -> bytes:
        """Return the name of a sample's file as found or given: DALI's source_info."""
        return self.file_name(self._file(sample))

    def path(self, sample: int) -> bytes:
        """Return the path of a sample's file, see `join_path()`."""
        return self.file_path(self._file(sample))

    def file_name(self, file: int) -> bytes:
        """Return the name of a file."""
        return bytes(self.names[self.offsets[:-1][file] : self.offsets[1:][file]])

    def file_names(self, files: IntArray) -> list[bytes]:
        """Return the names of `files` (int64[n], indices), in their order."""
        starts, stops = self.offsets[:-1][files].tolist(), self.offsets[1:][files].tolist()
        return [bytes(self.names[start:stop]) for start, stop in zip(starts, stops, strict=True)]

    def file_path(self, file: int) -> bytes:
        """Return the path of a file."""
        return join_path(self.root, self.file_name(file))

    def where(self, sample: int) -> str:
        """Describe the range of a sample for an error about its file; "" for a whole file.

        For example "sample 17: 97,500 bytes at 512", with the number of the delivered sample.
        """
        if self.ranges is None:
            return ""
        start, size = int(self.ranges.starts[sample]), int(self.ranges.sizes[sample])
        return f"sample {sample // self.pieces}: {size:,} bytes at {start:,}"

    def checksum(self) -> int:
        """Return a CRC-32 of names, labels, guards, and the place of samples in the files."""
        if "checksum" in self.sidecar:
            return int(self.sidecar["checksum"])
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
        """Return the `files` that lack one of their guards; errors name the path of the file."""
        guards = self.guards or {}
        return [it for it in files if it in guards and not _has(self.file_path(it), guards[it])]

    def knowing(self, checksum: int) -> Catalog:
        """Store a known checksum, which is then not computed; return this new catalog."""
        self.sidecar["checksum"] = checksum
        return self

    def paths(self, samples: IntArray) -> list[bytes]:
        """Return the paths of the files of `samples` (int64[n]), in their order."""
        return self.file_paths(self.files(samples))

    def file_paths(self, files: IntArray) -> list[bytes]:
        """Return the paths of `files` (int64[n], indices), in their order."""
        # Called for every batch, so there is little work per file.
        starts, stops = self.offsets[:-1][files], self.offsets[1:][files]
        names, prefixes = self.names, _prefixes(self.root)
        absolute = np.frombuffer(names, np.uint8)[starts] == ord("/")
        ranges = zip(absolute.tolist(), starts.tolist(), stops.tolist(), strict=True)
        return [prefixes[its] + names[start:stop] for its, start, stop in ranges]

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy mapped memory, which cannot be pickled."""
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
        """Add n samples, each named `prefix` plus one of `names`."""
        for start in range(0, len(names), 4096):  # in parts: join() needs 80 bytes for each piece
            self._names += prefix.join([b"", *names[start : start + 4096]])
        self._sizes.extend(map(len(prefix).__add__, map(len, names)))
        self._labels.extend(labels)

    def build(self, root: bytes) -> Catalog:
        """Build the catalog of the samples added so far."""
        offsets = np.zeros(len(self._sizes) + 1, np.int64)
        np.cumsum(self._sizes, out=offsets[1:])
        # astype() keeps the low 32 bits, as DALI does when it converts a long to an int.
        labels = np.asarray(self._labels).astype(np.int32)
        return Catalog(root, bytes(self._names), offsets, labels)


def state_of(status: os.stat_result) -> list[int]:
    """Return a file's state: inode, size in bytes, modification time in s and in ns.

    Each value is an int64, like the words of struct statx: large inodes are negative.
    """
    inode = status.st_ino - (status.st_ino >> 63 << 64)
    return [inode, status.st_size, *divmod(status.st_mtime_ns, 10**9)]


def open_nonblocking(path: bytes | str, flags: int) -> int:
    """Open a file as open(2): does not wait for the writer of a pipe, but for the end of a lease.

    Another process may have a lease on a regular file (F_SETLEASE in fcntl(2), as servers of SMB
    do), and gives it up when asked; the kernel waits for lease-break-time, 45 s, at most.
    """
    try:
        return os.open(path, flags | os.O_NONBLOCK, 0o666)
    except BlockingIOError:
        # The file itself is held, because the path may lead to a pipe by now.
        held = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise
            yield_turn()
            return os.open(f"/proc/self/fd/{held}", flags & ~os.O_NONBLOCK)
        finally:
            os.close(held)


def open_regular(path: bytes, mode: str = "r") -> io.FileIO:
    """Open a file unbuffered; OSError if the file is not regular."""
    with named(path):
        file = io.FileIO(path, mode, opener=open_nonblocking)
    # Asked of the open file, because the path may lead to another one by now.
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise os_error(errno.EINVAL, path, ": not a regular file")
    return file


def _has(path: bytes, guards: Sequence[tuple[int, bytes]]) -> bool:
    # Through the page cache, which all writers of a file share.
    with open_regular(path) as file, named(path):
        return all(os.pread(file.fileno(), len(it), at) == it for at, it in guards)


class Tree(Protocol):
    """A directory of class directories, listed by any storage; see `from_tree()`."""

    @property
    def root(self) -> bytes:
        """The path of the directory."""

    def directories(self) -> list[bytes]:
        """Return the names of the root's directories, and of links to directories, in any order."""

    def files(self, directory: bytes) -> list[bytes]:
        """Return the names of the files and links in one of `directories()`, in any order."""


def join_path(root: bytes, name: bytes) -> bytes:
    """Join a name to the directory `root`, as in DALI: an absolute name is its own path.

    Below a URL, an absolute name is the key of an object of the bucket (in `az`, of the container).
    """
    return _prefixes(root)[name.startswith(b"/")] + name


def _prefixes(root: bytes) -> tuple[bytes, bytes]:
    """Return the prefix of relative names, and that of absolute ones."""
    relative = root if not root or root.endswith(b"/") else root + b"/"
    return relative, b"/".join(relative.split(b"/")[:3]) if scheme(relative) else b""
