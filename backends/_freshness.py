"""Whether files are still those that were mapped.

Their state (inode, size, times) shows that a file was written to, replaced or deleted. It does not
show that its data was moved: e4defrag(8) and xfs_fsr(8) leave the times alone. These move what is
in several extents, or has space reserved beyond its end, which is an extent more in the map. Of
such files the extents are compared as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from bmap_tools import fiemap
from bmap_tools.extent_map import ExtentMap

from ..errors import StaleMapError
from ..reader import IntArray
from ._files import close_all, open_missing, statuses_of_paths


class Freshness:
    """Compares files with their map. Can be used from several threads."""

    def __init__(self, mapped: ExtentMap, remedy: str) -> None:
        """`remedy` is what the user is told to do about a stale map."""
        self._map = mapped
        self._remedy = remedy
        self._may_move = np.diff(mapped.extent_offsets) > 1

    def check(self, files: IntArray, paths: Sequence[bytes]) -> None:
        """Refuse files that are not as they were mapped.

        Args:
            files: int64[n], of the map.
            paths: where they are now.

        Raises:
            StaleMapError: one of them differs; of several that differ alike, the first.
            OSError: one of them cannot be asked about; names its path.
        """
        with self._missing_is_stale():
            self._check_state(files, paths, statuses_of_paths(paths))
            may_move = np.flatnonzero(self._may_move[files]).tolist()
            self._check_extents(files[may_move].tolist(), [paths[place] for place in may_move])

    @contextmanager
    def _missing_is_stale(self) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            path = os.fsencode(error.filename)
            what = "the file that was mapped is not there any more"
            raise StaleMapError(path, what, self._remedy) from None

    def _check_state(
        self, files: IntArray, paths: Sequence[bytes], status: npt.NDArray[np.void]
    ) -> None:
        mtimes = status["mtime_s"] * 10**9 + status["mtime_ns"]
        ctimes = status["ctime_s"] * 10**9 + status["ctime_ns"]
        mapped = self._map
        columns = (
            ("inode", mapped.inodes[files], status["inode"]),
            ("size", mapped.sizes[files], status["size"]),
            ("mtime", mapped.mtimes_ns[files], mtimes),
            ("ctime", mapped.ctimes_ns[files], ctimes),
        )
        differs = np.logical_or.reduce([then != now for _, then, now in columns])
        for place in np.flatnonzero(differs)[:1].tolist():
            name, then, now = next(c for c in columns if c[1][place] != c[2][place])
            what = f"its {name} was {then[place]} and is {now[place]}"
            raise StaleMapError(
                paths[place], f"the file has changed since it was mapped: {what}", self._remedy
            )

    def _check_extents(self, files: list[int], paths: Sequence[bytes]) -> None:
        fds = [-1] * len(paths)
        try:
            open_missing(fds, paths, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            for file, fd, path in zip(files, fds, paths, strict=True):
                if not self._is_in_place(file, fd):
                    what = "the file's data was moved since it was mapped"
                    raise StaleMapError(path, what, self._remedy)
        finally:
            close_all(fds)

    def _is_in_place(self, file: int, fd: int) -> bool:
        mapped = self._map
        raw = fiemap.Fiemap().raw_extents(fd, sync=False)
        size = int(mapped.sizes[file])
        found = fiemap.mapped(raw, size, mapped.file_system.block_size)
        if isinstance(found, str):
            return False
        first, last = mapped.extent_offsets[file : file + 2].tolist()
        expected = list(map(tuple, mapped.extents[first:last].tolist()))
        return _within(found, size) == _within(expected, size)


def _within(extents: list[fiemap.Extent], size: int) -> list[fiemap.Extent]:
    """Without space reserved beyond the end, which a file system gives back when it likes to."""
    return [extent for extent in extents if extent[0] < size]
