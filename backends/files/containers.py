"""Open containers of a catalog with ranges, and the detection of changes to them."""

import os
import resource
import threading
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ..linux.libc import STATX
from .opening import (
    close_all,
    open_cached,
    open_files,
    open_missing,
    regular_statuses,
    statuses_of_paths,
)
from .samples import FILES_AT_ONCE, SampleFiles, close_all_kept

_MOST_OPEN = 256  # containers per reader, or a quarter of the files that a process may open
_IDENTITY = np.array([4, 5, 14, 15])  # inode, size, mtime in s and ns: words in struct statx


class Containers:
    """The open containers of a reader, shared by its lanes; recently used ones stay open.

    A *handle* is the number of a container, opened with the flags of the files; or ~number, opened
    to read through the page cache. A container may be open both ways.

    The state of a container (inode, size and time of modification, 32 bytes) is taken from
    `Catalog.states`, or else at the first opening. The state is compared at every opening and,
    by path, after every batch, so a replaced container is noticed, too. The bytes in
    `Catalog.guards` are also compared after every batch.

    Without guards, three kinds of writers go unnoticed: one who resets the time of modification;
    one with a writable mapping, already written to before the state was taken; and, before Linux
    6.13, one who writes both before and after the state was taken, within a tick of the kernel's
    clock (1 to 10 ms). The time of status change (ctime) would show the first, but also changes
    with the container's name, owner and permissions.

    Attributes:
        at_once: the most containers that a lane may use at once.
    """

    def __init__(self, catalog: Catalog, files: SampleFiles, lanes: int) -> None:
        """Open nothing yet; `files` has the flags for opening."""
        self._catalog = catalog
        self._files = files
        count = 0 if catalog.ranges is None else catalog.file_count
        self._known = np.zeros((count, 4), np.int64)  # the inode is 0: not opened yet
        if count and catalog.states is not None:
            self._known[:] = catalog.states
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(_MOST_OPEN, limit // 4 or 1) if limit > 0 else _MOST_OPEN
        self.at_once = max(min(FILES_AT_ONCE, self._most // lanes), 1)
        self._open: OrderedDict[int, int] = OrderedDict()  # handle -> descriptor, last used last
        self._paths: dict[int, bytes] = {}  # by handle, of open files
        self._pinned: dict[int, list[int]] = {}  # lane -> handles that the lane may be reading
        self._lock = threading.Lock()  # of these three; nothing blocks while holding the lock

    def open(self, handles: list[int], lane: int) -> list[int]:
        """Open the first of `handles`, at least one, all if possible; return their descriptors.

        The descriptors stay open until the same lane calls `open()` again, or `release()`.

        Raises:
            OSError: a file cannot be opened, or is not a regular file; names its path.
        """
        fds = self._pin(handles, lane)
        while (opened := _opened(fds)) < len(handles):
            missing = [handle for handle, fd in zip(handles, fds, strict=True) if fd < 0]
            all_open = self._open_missing(missing, lane)
            # Again, because `_close_others()` may have closed some.
            fds = self._pin(handles, lane)
            # At the limit of open files, the first ones are enough.
            if not all_open and (opened := _opened(fds)):
                break
        return fds[:opened]

    def release(self, lane: int) -> None:
        """Allow the descriptors of a lane to be closed when others are needed."""
        # One call of C, and only this lane adds its entry: no lock is needed.
        self._pinned.pop(lane, None)

    def size(self, file: int) -> int:
        """The size in bytes of a container, once opened."""
        return int(self._known[file, 1])

    def identity(self, file: int) -> tuple[int, int, int]:
        """The st_ino, st_size and st_mtime_ns of a container when it was first opened."""
        inode, size, seconds, nanoseconds = self._known[file].tolist()
        return inode % (1 << 64), size, seconds * 10**9 + nanoseconds

    def statuses(self, handles: list[int]) -> npt.NDArray[np.void]:
        """Query the status of n open files by their paths: STATX[n].

        Raises:
            OSError: a path does not exist any more; names the first.
        """
        return statuses_of_paths([self._paths[handle] for handle in handles], self._files.local)

    def changed(self, handles: list[int]) -> list[int]:
        """List the files of open `handles` that have changed, or lack their guards.

        Raises as `statuses()` and `Catalog.altered()`.
        """
        once = {max(handle, ~handle): handle for handle in handles}
        files = list(once)
        differs = _identities(self.statuses([*once.values()])) != self._known[files]
        if not differs.any():
            return self._catalog.altered(files)
        return [files[index] for index in np.flatnonzero(differs.any(axis=1)).tolist()]

    def close(self) -> None:
        """Close all containers. Closing twice is fine."""
        self._pinned.clear()
        self._close(list(self._open))

    def _pin(self, handles: list[int], lane: int) -> list[int]:
        """Keep other lanes from closing `handles`; return their descriptors, -1 if not open."""
        with self._lock:
            self._pinned[lane] = handles
            fds = [self._open.get(handle, -1) for handle in handles]
            for handle, fd in zip(handles, fds, strict=True):
                if fd >= 0:
                    self._open.move_to_end(handle)
        return fds

    def _open_missing(self, handles: list[int], lane: int) -> bool:
        """Open the first of `handles`, at least one; return whether all are open."""
        files = [max(handle, ~handle) for handle in handles]
        paths, flags = (
            self._catalog.file_paths(np.array(files)),
            np.full(len(files), self._files.flags),
        )
        flags[np.array(handles) < 0] &= ~os.O_DIRECT
        close_others = partial(self._close_others, lane)
        with open_files() as fds:
            fds += [-1] * len(files)
            if not (self._files.local and open_cached(fds, paths, flags)):
                open_missing(fds, paths, flags, close_others=close_others)
            count = len(fds)
            status = regular_statuses(fds, paths, self._files.local)
            with self._lock:
                self._require_known(files[:count], _identities(status))
                self._paths |= zip(handles[:count], paths, strict=False)
                # Descriptors that stay here are duplicates: another lane was faster.
                added = zip(handles, fds, strict=False)
                fds[:] = [fd for handle, fd in added if self._open.setdefault(handle, fd) != fd]
                self._close(self._unpinned()[: max(len(self._open) - self._most, 0)])
        return count == len(files)

    def _require_known(self, files: list[int], found: IntArray) -> None:
        """Note the state of `files` at their first opening, and refuse changed ones later."""
        known = self._known[files]
        self._known[files] = np.where(known[:, :1] == 0, found, known)
        # Compared as noted: one that was replaced between its two openings has one state only.
        differs = (self._known[files] != found).any(axis=1)
        for changed in np.flatnonzero(differs)[:1].tolist():
            raise changed_error(self._catalog.file_path(files[changed]))

    def _close_others(self, lane: int) -> None:
        """Close containers that no other lane needs. This lane will reopen its own."""
        close_all_kept()
        with self._lock:
            self._pinned.pop(lane, None)
            self._close(self._unpinned())

    def _unpinned(self) -> list[int]:
        # A copy, because `release()` takes no lock.
        pinned = set().union(*list(self._pinned.values()))
        return [handle for handle in self._open if handle not in pinned]

    def _close(self, handles: Iterable[int]) -> None:
        closed = list(handles)
        close_all(map(self._open.pop, closed))
        for handle in closed:
            self._paths.pop(handle, None)


def changed_error(path: bytes, where: str = "") -> ContainerChangedError:
    """The error for a container that was written or replaced; `where` names the sample."""
    what = "the container was written or replaced after the reader first opened or indexed it"
    remedy = "create a new reader, and rebuild the index if there is one"
    return ContainerChangedError(path, f"{where + ': ' if where else ''}{what}; {remedy}")


def outside_error(catalog: Catalog, sample: int, size: int) -> ContainerChangedError:
    """The error for a sample whose range ends beyond its container of `size` bytes."""
    what = f"{catalog.where(sample)} ends beyond the container: {size:,} bytes"
    remedy = "restore the container if it was truncated, else rebuild its index"
    return ContainerChangedError(catalog.path(sample), f"{what}; {remedy}")


def _opened(fds: list[int]) -> int:
    """Count the open descriptors at the beginning of the list."""
    return fds.index(-1) if -1 in fds else len(fds)


def _identities(status: npt.NDArray[np.void]) -> IntArray:
    """int64[n, 4]: inode, size in bytes, time of modification in s and ns, of STATX[n]."""
    # A view, because picking the fields one by one is several times slower.
    return status.view(np.int64).reshape(-1, STATX.itemsize // 8)[:, _IDENTITY]
