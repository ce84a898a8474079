"""Comparison of files with their map, to refuse files changed since the mapping.

The state of a file (inode, size, times) shows writes, replacement and deletion. A move of the data
leaves the state unchanged: e4defrag(8), xfs_fsr(8), duperemove(8), and resize2fs(8) on an unmounted
file system. Extents are therefore compared, too. If the data of a file can move while mounted (all
files on XFS, where any two can be made to share blocks; elsewhere files with several extents, or
with space reserved beyond their end), extents are compared at every read, else once, when the
reader is opened. See `containers` for files from which ranges are read.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from bmap_tools import fiemap

from ...contract._types import IntArray
from ...contract.errors import named
from ..files.opening import open_cached, open_files, open_missing, statuses, statuses_of_paths
from ..files.samples import FILES_AT_ONCE
from .map import LoadedMap

_LAST_SECOND = 2**63 // 10**9 - 1  # nanoseconds fit in 64 bits up to here; later ones are clipped


class Freshness:
    """Compares files with their map, from any number of threads.

    Attributes:
        can_move: bool[files], true if the data of a file can move while mounted.
    """

    def __init__(self, loaded: LoadedMap) -> None:
        self._loaded = loaded
        self._map = extent_map = loaded.map
        self._counts = np.diff(extent_map.extent_offsets)
        # Not empty, because files without extents index it, too.
        self._extents = (
            extent_map.extents if len(extent_map.extents) else np.zeros((1, 3), np.int64)
        )
        self._is_mapped = np.ones(len(extent_map), bool)
        self._is_mapped[list(extent_map.unmapped)] = False
        self.can_move = (self._counts > 1) | (extent_map.file_system.type == "xfs")
        self.can_move &= self._is_mapped

    def check_all(self, files: IntArray, paths: Callable[[IntArray], Sequence[bytes]]) -> None:
        """Do as `check()`, before the first read; `paths` returns the paths of some files."""
        # Files that can be moved while mounted are checked again on every read; skip them here.
        unseen = np.flatnonzero(self._is_mapped[files] & ~self.can_move[files])
        with self.missing_is_stale():
            for start in range(0, len(unseen), FILES_AT_ONCE):
                some = unseen[start : start + FILES_AT_ONCE]
                self._check_extents(files[some], paths(some))

    def check(self, files: IntArray, paths: Sequence[bytes]) -> None:
        """Refuse files of the map (int64[n]) that differ now; `paths` has the path of each.

        Raises:
            StaleMapError: a file differs; of several with the same difference, names the first.
            OSError: the state of a file cannot be read; names its path.
        """
        can_move = self.can_move[files]
        movable, others = np.flatnonzero(can_move), np.flatnonzero(~can_move)
        with self.missing_is_stale():
            self._check_extents(files[movable], [paths[index] for index in movable.tolist()])
            if others.size:
                chosen = [paths[index] for index in others.tolist()]
                self.check_state(files[others], chosen, statuses_of_paths(chosen))

    @contextmanager
    def missing_is_stale(self) -> Iterator[None]:
        """Refuse a file that is not found."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            path = os.fsencode(error.filename)
            raise self._loaded.stale(path, "the mapped file no longer exists") from None

    def check_state(
        self, files: IntArray, paths: Sequence[bytes], status: npt.NDArray[np.void]
    ) -> None:
        """Refuse files whose status, STATX[n], differs from the map."""
        mapped = self._map
        columns = (
            ("inode", mapped.inodes[files], status["inode"]),
            ("size", mapped.sizes[files], status["size"]),
            ("mtime", mapped.mtimes_ns[files], _ns(status["mtime_s"], status["mtime_ns"])),
            ("ctime", mapped.ctimes_ns[files], _ns(status["ctime_s"], status["ctime_ns"])),
        )
        differs = np.logical_or.reduce([then != now for _, then, now in columns])
        for index in np.flatnonzero(differs)[:1].tolist():
            name, then, now = next(c for c in columns if c[1][index] != c[2][index])
            what = f"its {name} was {then[index]} and is {now[index]}"
            what = f"the file has changed since it was mapped: {what}"
            raise self._loaded.stale(paths[index], what)

    def _check_extents(self, files: IntArray, paths: Sequence[bytes]) -> None:
        while files.size:
            with open_files() as fds:
                fds += [-1] * min(files.size, FILES_AT_ONCE)
                self._open(fds, paths[: len(fds)])
                some, files = np.split(files, [len(fds)])  # the process may open few files
                self.check_state(some, paths, statuses(fds, paths, local=True))
                for index in np.flatnonzero(~self._have_same_extent(some, fds)).tolist():
                    with named(paths[index]):
                        raw = fiemap.raw_extents(fds[index], sync=False)
                    self.require_extents(int(some[index]), paths[index], raw)
            paths = paths[some.size :]

    def _open(self, fds: list[int], paths: Sequence[bytes]) -> None:
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
        # If the first path is not cached, the others will not be either: do not try each.
        with open_files() as first:
            first.append(-1)
            is_cached = open_cached(first, paths[:1], flags)
        if not (is_cached and open_cached(fds, paths, flags)):
            open_missing(fds, paths, flags)

    def _have_same_extent(self, files: IntArray, fds: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool[n]: true for files with at most one extent, the same in the map and now."""
        same = np.zeros(len(fds), bool)
        few = np.flatnonzero(self._counts[files] <= 1)
        files = files[few]
        block_size = self._map.file_system.block_size
        counts, extents = fiemap.single_extents(
            [fds[index] for index in few.tolist()], self._map.sizes[files], block_size
        )
        # The offset of a last file without extents is one too large.
        first = np.minimum(self._map.extent_offsets[files], len(self._extents) - 1)
        is_equal = (extents == self._extents[first]).all(axis=1) | (counts == 0)
        same[few] = (counts == self._counts[files]) & is_equal
        return same

    def require_extents(self, file: int, path: bytes, raw: list[fiemap.RawExtent]) -> None:
        """Refuse a file with changed extents; `raw` reaches at least to the last block."""
        mapped = self._map
        size = int(mapped.sizes[file])
        found = fiemap.usable_extents(raw, size, mapped.file_system.block_size)
        first, last = mapped.extent_offsets[file : file + 2].tolist()
        expected = list(map(tuple, mapped.extents[first:last].tolist()))
        if isinstance(found, str) or _before_end(found, size) != _before_end(expected, size):
            what = "the data of the file has moved since it was mapped"
            raise self._loaded.stale(path, what)


def _ns(seconds: IntArray, nanoseconds: npt.NDArray[np.uint32]) -> IntArray:
    """Times in nanoseconds, as in a map: clipped to 64 bits."""
    known = np.clip(seconds, -_LAST_SECOND, _LAST_SECOND) * 10**9 + nanoseconds
    limit = np.where(seconds > 0, 2**63 - 1, -(2**63))
    return np.where(np.abs(seconds) > _LAST_SECOND, limit, known)


def _before_end(extents: list[fiemap.Extent], size: int) -> list[fiemap.Extent]:
    """Leave out space reserved beyond the end, which a file system may release at any time."""
    return [extent for extent in extents if extent[0] < size]
