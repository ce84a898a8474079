"""The containers of a catalog with ranges: kept open, and compared with what they were."""

import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from .opening import (
    STATX,
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
    """The open containers of a reader, shared by its lanes. Those used last stay open.

    The inode, size and time of modification of a container are kept, 32 bytes each: those in
    `Catalog.states`, or else those that it has when it is first opened. It is compared with these
    whenever it is opened, and after every batch, by its path: that another one has taken its place
    is noticed, too. After every batch, so are the bytes in `Catalog.guards`.

    Without guards, these are not noticed: a writer that puts the time of modification back; one
    that writes through a mapping which it already wrote to before the state was taken; and, before
    Linux 6.13, one that writes both before and after that, within a tick of the kernel's clock (1
    to 10 ms). The time of status change (ctime) would tell the first, but also changes with the
    container's name, owner and permissions.

    Attributes:
        at_once: how many a lane may use at once.
    """

    def __init__(self, catalog: Catalog, files: SampleFiles, lanes: int) -> None:
        """Open nothing yet; `files` tells how."""
        self._catalog = catalog
        self._files = files
        count = 0 if catalog.ranges is None else catalog.file_count
        self._known = np.zeros((count, 4), np.int64)  # the inode is 0: not opened yet
        if count and catalog.states is not None:
            self._known[:] = catalog.states
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(_MOST_OPEN, limit // 4 or 1) if limit > 0 else _MOST_OPEN
        self.at_once = max(min(FILES_AT_ONCE, self._most // lanes), 1)
        self._open: OrderedDict[int, int] = OrderedDict()  # file -> descriptor, last used last
        self._paths: dict[int, bytes] = {}  # of those that are open
        self._pinned: dict[int, list[int]] = {}  # lane -> files that it may be reading
        self._lock = threading.Lock()  # of these three; nothing blocks while it is held

    def open(self, files: list[int], lane: int, yield_turn: Callable[[], None]) -> list[int]:
        """The descriptors of the first of `files`: at least one, all if they can all be open.

        They stay open until the same lane calls this again, or `release()`.

        Raises:
            OSError: a file cannot be opened, or is no regular file; names its path.
        """
        fds = self._pin(files, lane)
        while (opened := _opened(fds)) < len(files):
            missing = [file for file, fd in zip(files, fds, strict=True) if fd < 0]
            all_open = self._open_missing(missing, lane, yield_turn)
            fds = self._pin(files, lane)
            if not all_open and (opened := _opened(fds)):
                break
        return fds[:opened]

    def release(self, lane: int) -> None:
        """Let the descriptors of a lane be closed when others are needed."""
        self._pinned.pop(lane, None)

    def size(self, file: int) -> int:
        """The size in bytes of a container that has been opened."""
        return int(self._known[file, 1])

    def identity(self, file: int) -> tuple[int, int, int]:
        """The st_ino, st_size and st_mtime_ns of a container when it was first opened."""
        inode, size, seconds, nanoseconds = self._known[file].tolist()
        return inode % (1 << 64), size, seconds * 10**9 + nanoseconds

    def statuses(self, files: list[int]) -> npt.NDArray[np.void]:
        """The status of n of `files`, which are open, by their paths: STATX[n].

        Raises:
            OSError: nothing is there any more; names the first path.
        """
        return statuses_of_paths([self._paths[file] for file in files], self._files.local)

    def changed(self, files: list[int]) -> list[int]:
        """Those of `files`, which are open, that are not what they were, or lack their guards.

        The errors are those of `statuses()` and `Catalog.altered()`.
        """
        differs = _identities(self.statuses(files)) != self._known[files]
        if not differs.any():
            return self._catalog.altered(files)
        return [files[index] for index in np.flatnonzero(differs.any(axis=1)).tolist()]

    def close(self) -> None:
        """Close all. Closing twice is fine."""
        self._pinned.clear()
        self._close(list(self._open))

    def _pin(self, files: list[int], lane: int) -> list[int]:
        """The descriptors of `files`, -1 where it is not open, which no other lane closes."""
        with self._lock:
            self._pinned[lane] = files
            fds = [self._open.get(file, -1) for file in files]
            for file, fd in zip(files, fds, strict=True):
                if fd >= 0:
                    self._open.move_to_end(file)
        return fds

    def _open_missing(self, files: list[int], lane: int, yield_turn: Callable[[], None]) -> bool:
        """Open the first of `files`, at least one; returns whether that is all."""
        paths, flags = self._catalog.file_paths(np.array(files)), self._files.flags
        close_others = partial(self._close_others, lane)
        with open_files() as fds:
            fds += [-1] * len(files)
            if not (self._files.local and open_cached(fds, paths, flags)):
                yield_turn()
                open_missing(fds, paths, flags, close_others=close_others)
            count = len(fds)
            status = regular_statuses(fds, paths, self._files.local)
            with self._lock:
                self._require_known(files[:count], _identities(status))
                self._paths |= zip(files[:count], paths, strict=False)
                # What stays here is open already: another lane was faster.
                added = zip(files, fds, strict=False)
                fds[:] = [fd for file, fd in added if self._open.setdefault(file, fd) != fd]
                self._close(self._unpinned()[: max(len(self._open) - self._most, 0)])
        return count == len(files)

    def _require_known(self, files: list[int], found: IntArray) -> None:
        """Note what `files` are when first opened, and refuse those that are others now."""
        known = self._known[files]
        known = np.where(known[:, :1] == 0, found, known)
        for changed in np.flatnonzero((known != found).any(axis=1))[:1].tolist():
            raise changed_error(self._catalog.file_path(files[changed]))
        self._known[files] = known

    def _close_others(self, lane: int) -> None:
        """Close what no other lane needs. This lane will open its own again."""
        close_all_kept()
        with self._lock:
            self._pinned.pop(lane, None)
            self._close(self._unpinned())

    def _unpinned(self) -> list[int]:
        pinned = set().union(*list(self._pinned.values()))
        return [file for file in self._open if file not in pinned]

    def _close(self, files: Iterable[int]) -> None:
        closed = list(files)
        close_all(map(self._open.pop, closed))
        for file in closed:
            self._paths.pop(file, None)


def changed_error(path: bytes, where: str = "") -> ContainerChangedError:
    """The error of a container that was written or replaced; `where` names the sample."""
    what = "the container has been written or replaced since the reader first looked into it"
    remedy = "make the reader anew, and the index if there is one"
    return ContainerChangedError(path, f"{where + ': ' if where else ''}{what}; {remedy}")


def outside_error(catalog: Catalog, sample: int, size: int) -> ContainerChangedError:
    """The error of a sample whose range ends behind its container, which has `size` bytes."""
    what = f"{catalog.where(sample)} ends behind the container: {size:,} bytes"
    remedy = "restore it if it was truncated, or else make its index anew"
    return ContainerChangedError(catalog.path(sample), f"{what}; {remedy}")


def _opened(fds: list[int]) -> int:
    """How many of the first descriptors are open."""
    return fds.index(-1) if -1 in fds else len(fds)


def _identities(status: npt.NDArray[np.void]) -> IntArray:
    """int64[n, 4]: inode, size in bytes, time of modification in s and ns, of STATX[n]."""
    # A view, because picking the fields one by one takes several times as long.
    return status.view(np.int64).reshape(-1, STATX.itemsize // 8)[:, _IDENTITY]
