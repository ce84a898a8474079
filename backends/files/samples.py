"""The files of a catalog's samples: sized once, opened when they are read."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np

from ..._types import IntArray
from ...catalog import Catalog
from .opening import close_all, is_local, open_cached, open_missing, regular_sizes

FILES_AT_ONCE = 64  # a lane; open files are limited, to 1,024 a process by default


class SampleFiles:
    """Opens and sizes the files of samples, from any thread.

    What `sizes()` has opened stays open for the read that follows it in the same thread, and no
    longer: a file that is replaced must be read anew.
    """

    def __init__(self, catalog: Catalog, flags: int) -> None:
        """Open nothing yet; `flags` are those of open(2)."""
        self.flags = flags
        self._catalog = catalog
        self._sizes = np.full(len(catalog), -1, np.int64)  # -1: not sized yet
        self._local = len(catalog) > 0 and is_local(os.path.dirname(catalog.path(0)) or b".")
        self._of_thread: dict[int, dict[int, int]] = {}  # open files: thread, sample, descriptor

    def sizes(self, samples: IntArray, waiting: Callable[[], None]) -> IntArray:
        """The sizes of `samples` in bytes, int64[n], as they were when first asked for.

        Args:
            samples: int64[n], catalog indices.
            waiting: called when from here on a disk or a server is waited for.

        Raises:
            OSError: one of them cannot be opened, or is not a regular file; names its path.
        """
        self._drop()
        # Again and again, because another lane may find meanwhile that a size has changed.
        while ((sizes := self._sizes[samples]) < 0).any():
            unsized = np.unique(samples[sizes < 0])
            for start in range(0, unsized.size, FILES_AT_ONCE):
                self._size(unsized[start : start + FILES_AT_ONCE], waiting)
        return sizes

    def forget(self, samples: IntArray) -> None:
        """Size them anew when they are next asked for."""
        self._sizes[samples] = -1

    def take(self, samples: IntArray) -> list[int]:
        """Those of `samples` that `sizes()` left open, now the caller's; -1 for the others."""
        mine = self._of_thread.get(threading.get_ident())
        if not mine:
            return [-1] * len(samples)
        return [*map(mine.pop, samples.tolist(), repeat(-1))]  # Ctrl-C comes before it or after it

    def open_cached(self, fds: list[int], paths: Sequence[bytes]) -> bool:
        """Open what needs no waiting; whether all are open now. As `_files.open_cached()`."""
        return self._local and open_cached(fds, paths, self.flags)

    def open_missing(self, fds: list[int], paths: Sequence[bytes]) -> None:
        """Open the others, as `_files.open_missing()`."""
        open_missing(fds, paths, self.flags)

    def sizes_now(self, fds: list[int], paths: Sequence[bytes]) -> IntArray:
        """The sizes of open files as they are, as `_files.regular_sizes()`."""
        return regular_sizes(fds, paths, self._local)

    def require_direct(self) -> None:
        """Refuse O_DIRECT early; other trouble with a file is told when its turn comes.

        Raises:
            OSError: the file system of the first sample has none.
        """
        fds = [-1]
        try:
            self.open_missing(fds, [self._catalog.path(0)])
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise
        finally:
            close_all(fds)

    def close(self) -> None:
        """Close everything."""
        for thread in list(self._of_thread):
            close_all(self._of_thread.pop(thread).values())

    def _size(self, samples: IntArray, waiting: Callable[[], None]) -> None:
        paths = self._catalog.paths(samples)
        fds = [-1] * len(paths)
        try:
            if not self.open_cached(fds, paths):
                waiting()
                self.open_missing(fds, paths)
            self._sizes[samples] = self.sizes_now(fds, paths)
        except BaseException:
            close_all(fds)
            raise
        self._keep(samples, fds)

    def _keep(self, samples: IntArray, fds: list[int]) -> None:
        """Take over open files; what would be too many is closed."""
        mine = self._of_thread.setdefault(threading.get_ident(), {})
        room = max(FILES_AT_ONCE - len(mine), 0)
        mine.update(zip(samples[:room].tolist(), fds, strict=False))
        close_all(fds[room:])

    def _drop(self) -> None:
        """Close what this thread has not taken."""
        close_all(self._of_thread.pop(threading.get_ident(), {}).values())
