"""Whether files are still those that were mapped.

Their state (inode, size, times) shows that a file was written to, replaced or deleted. It does not
show that its data was moved, by e4defrag(8), xfs_fsr(8), duperemove(8), or resize2fs(8) while it
was not mounted: these leave all that as it is. So the extents of all files are compared once, at
the beginning, and again at every use of what can be moved while it is mounted: all files on XFS,
which can make any two share their blocks, and elsewhere those of several extents, or with space
reserved beyond their end.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import numpy.typing as npt

from bmap_tools import fiemap

from ..._types import IntArray
from ..files.opening import close_all, open_cached, open_missing, statuses, statuses_of_paths
from ..files.samples import FILES_AT_ONCE
from .map import LoadedMap

_IOC_FIEMAP = 0xC020660B
_ROOM = 2  # extents: enough to see one, and that there is no other
_EXTENT = [
    ("logical", "<i8"),
    ("physical", "<i8"),
    ("length", "<i8"),
    ("reserved64", "<u8", 2),
    ("flags", "<u4"),
    ("reserved", "<u4", 3),
]
_FIEMAP = np.dtype(  # struct fiemap, <linux/fiemap.h>
    [
        ("start", "<u8"),
        ("length", "<u8"),
        ("flags", "<u4"),
        ("mapped", "<u4"),
        ("room", "<u4"),
        ("reserved", "<u4"),
        ("extents", _EXTENT, _ROOM),
    ]
)
_LAST_SECOND = 2**63 // 10**9 - 1  # whose nanoseconds fit in 64 bits; what is later is cut off
_HARMLESS = np.uint32(0x1 | 0x1000 | 0x2000)  # LAST, MERGED, SHARED say nothing of the place

_ioctl = ctypes.PyDLL(None).ioctl  # PyDLL: keeps the interpreter lock; see _files
_ioctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]


class Freshness:
    """Compares files with their map. Can be used from several threads."""

    def __init__(self, loaded: LoadedMap) -> None:
        self._loaded = loaded
        self._map = mapped = loaded.map
        self._counts = np.diff(mapped.extent_offsets)
        # Not empty, because what has no extents is looked up in it as well.
        self._extents = mapped.extents if len(mapped.extents) else np.zeros((1, 3), np.int64)
        self._is_mapped = np.ones(len(mapped), bool)
        self._is_mapped[list(mapped.unmapped)] = False
        self._can_be_moved = (self._counts > 1) | (mapped.file_system.type == "xfs")
        self._can_be_moved &= self._is_mapped

    def check_all(self, files: IntArray, paths: Callable[[IntArray], Sequence[bytes]]) -> None:
        """Refuse files that are not as they were mapped, before the first of them is used.

        Args:
            files: int64[n], of the map.
            paths: where some of them (int64[k], indices into `files`) are now.

        Raises:
            As `check()`.
        """
        # What is looked at whenever it is used, need not be looked at now.
        unseen = np.flatnonzero(self._is_mapped[files] & ~self._can_be_moved[files])
        with self._missing_is_stale():
            for start in range(0, len(unseen), FILES_AT_ONCE):
                some = unseen[start : start + FILES_AT_ONCE]
                self._check_extents(files[some], paths(some))

    def check(self, files: IntArray, paths: Sequence[bytes]) -> None:
        """Refuse files that are not as they were mapped.

        Args:
            files: int64[n], of the map.
            paths: where they are now.

        Raises:
            StaleMapError: one of them differs; of several that differ alike, it is the first.
            OSError: one of them cannot be asked about; names its path.
        """
        with self._missing_is_stale():
            for start in range(0, len(paths), FILES_AT_ONCE):
                part = slice(start, start + FILES_AT_ONCE)
                self._check(files[part], paths[part])

    def _check(self, files: IntArray, paths: Sequence[bytes]) -> None:
        wanted = self._can_be_moved[files]
        thorough, quick = np.flatnonzero(wanted), np.flatnonzero(~wanted)
        if thorough.size:
            self._check_extents(files[thorough], [paths[place] for place in thorough.tolist()])
        if quick.size:
            chosen = [paths[place] for place in quick.tolist()]
            self._check_state(files[quick], chosen, statuses_of_paths(chosen))

    @contextmanager
    def _missing_is_stale(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            path = os.fsencode(error.filename)
            what = "the file that was mapped is not there any more"
            raise self._loaded.stale(path, what) from None

    def _check_state(
        self, files: IntArray, paths: Sequence[bytes], status: npt.NDArray[np.void]
    ) -> None:
        mapped = self._map
        columns = (
            ("inode", mapped.inodes[files], status["inode"]),
            ("size", mapped.sizes[files], status["size"]),
            ("mtime", mapped.mtimes_ns[files], _ns(status["mtime_s"], status["mtime_ns"])),
            ("ctime", mapped.ctimes_ns[files], _ns(status["ctime_s"], status["ctime_ns"])),
        )
        differs = np.logical_or.reduce([then != now for _, then, now in columns])
        for place in np.flatnonzero(differs)[:1].tolist():
            name, then, now = next(c for c in columns if c[1][place] != c[2][place])
            what = f"its {name} was {then[place]} and is {now[place]}"
            raise self._loaded.stale(
                paths[place], f"the file has changed since it was mapped: {what}"
            )

    def _check_extents(self, files: IntArray, paths: Sequence[bytes]) -> None:
        fds = [-1] * len(paths)
        try:
            self._open(fds, paths)
            self._check_state(files, paths, statuses(fds, paths, local=True))
            for place in np.flatnonzero(~self._are_simply_same(files, fds)).tolist():
                if not self._are_same(int(files[place]), fds[place]):
                    what = "the file's data was moved since it was mapped"
                    raise self._loaded.stale(paths[place], what)
        finally:
            close_all(fds)

    def _open(self, fds: list[int], paths: Sequence[bytes]) -> None:
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
        # Where the first is not cached the others will not be, and to ask for each is a waste.
        first = fds[:1]
        try:
            is_cached = open_cached(first, paths[:1], flags)
        finally:
            close_all(first)
        if not (is_cached and open_cached(fds, paths, flags)):
            open_missing(fds, paths, flags)

    def _are_simply_same(self, files: IntArray, fds: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool[n]: files of no or one extent, in the map and now, that is the same."""
        counts, sizes = self._counts[files], self._map.sizes[files]
        answers = np.zeros(len(fds), _FIEMAP)
        answers["length"] = np.maximum(sizes, 1)  # what lies beyond its end is of no interest
        answers["room"] = _ROOM
        # Of so few extents the kernel knows without reading the disk, which would take the lock.
        places = np.flatnonzero(counts <= 1)
        addresses = (answers.ctypes.data + places * _FIEMAP.itemsize).tolist()
        asked = map(fds.__getitem__, places.tolist())
        told = np.zeros(len(fds), bool)
        told[places] = [not failed for failed in map(_ioctl, asked, repeat(_IOC_FIEMAP), addresses)]
        first = np.minimum(self._map.extent_offsets[files], len(self._extents) - 1)
        same = self._is_same(answers["extents"][:, 0], self._extents[first], sizes)
        told &= (answers["mapped"] == counts) & (same | (counts == 0))
        return told

    def _is_same(
        self, found: npt.NDArray[np.void], expected: IntArray, sizes: IntArray
    ) -> npt.NDArray[np.bool_]:
        block = self._map.file_system.block_size
        ends = np.minimum(found["logical"] + found["length"], -(-sizes // block) * block)
        same: npt.NDArray[np.bool_] = (
            (found["logical"] == expected[:, 0])
            & (found["physical"] == expected[:, 1])
            & (ends == expected[:, 0] + expected[:, 2])
            & (found["flags"] & ~_HARMLESS == 0)
        )
        return same

    def _are_same(self, file: int, fd: int) -> bool:
        mapped = self._map
        raw = fiemap.Fiemap().raw_extents(fd, sync=False)
        size = int(mapped.sizes[file])
        found = fiemap.usable_extents(raw, size, mapped.file_system.block_size)
        if isinstance(found, str):
            return False
        first, last = mapped.extent_offsets[file : file + 2].tolist()
        expected = list(map(tuple, mapped.extents[first:last].tolist()))
        return _within(found, size) == _within(expected, size)


def _ns(seconds: IntArray, nanoseconds: npt.NDArray[np.uint32]) -> IntArray:
    """Times as a map has them: what does not fit in 64 bits is the last that does."""
    known = np.clip(seconds, -_LAST_SECOND, _LAST_SECOND) * 10**9 + nanoseconds
    limit = np.where(seconds > 0, 2**63 - 1, -(2**63))
    return np.where(np.abs(seconds) > _LAST_SECOND, limit, known)


def _within(extents: list[fiemap.Extent], size: int) -> list[fiemap.Extent]:
    """Without space reserved beyond the end, which a file system gives back when it likes to."""
    return [extent for extent in extents if extent[0] < size]
