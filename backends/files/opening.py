"""Opening, sizing and closing many files at little cost to the other threads of the process.

On local file systems, calls that cannot block keep the interpreter lock, see `linux.libc`.
openat2(2) with RESOLVE_CACHED opens a file only if its path is cached, and so cannot block. On
network and user-space file systems every call may block, and releases the lock.
"""

import ctypes
import errno
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.catalog import open_nonblocking, state_of
from ...contract.errors import named, os_error
from ...contract.stages import yield_turn
from ..linux import libc
from ..linux.libc import STATX

_RETRY_S, _PATIENCE_S = 0.005, 5.0  # while other threads use up the limit of open files
_OPENAT2 = 437  # on every machine, like all system calls since 2019
_RESOLVE_CACHED = 0x20
_STATX_BASIC_STATS = 0x7FF

# f_type of struct statfs: ext2 to ext4, XFS, btrfs, F2FS, bcachefs
_CACHED = frozenset((0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0xCA451A4E))
_LOCAL = _CACHED | {0x2FC12FC1, 0x01021994}  # ZFS, which has a cache of its own, and tmpfs


@contextmanager
def open_files() -> Iterator[list[int]]:
    """A list for descriptors, closed and removed after the block, Ctrl-C or not; -1 is skipped."""
    fds: list[int] = []
    closing = map(libc.close, fds)
    try:
        yield fds
        close_all(map(fds.pop, repeat(-1, len(fds))))
    finally:
        # Also after a Ctrl-C before this has resumed: then the garbage collector closes the
        # generator. One bytecode instruction: a Ctrl-C in a loop would leave the rest open.
        deque(closing, maxlen=0)


def is_local(directory: bytes, kinds: Container[int] | None = None) -> bool:
    """Test if a directory is on a file system that blocks only on local disks."""
    status = (ctypes.c_long * 64)()  # struct statfs; f_type is its first field
    return libc.statfs(directory, status) == 0 and status[0] in (kinds or _LOCAL)


def used_bytes(directory: bytes) -> int | None:
    """The bytes used on the file system of a directory; None unless the page cache is its cache."""
    status = os.statvfs(directory) if is_local(directory, _CACHED) else None
    return status and status.f_frsize * (status.f_blocks - status.f_bfree)


def open_cached(fds: list[int], paths: Sequence[bytes], flags: IntArray | int) -> bool:
    """Open `paths[i]` as `fds[i]` where -1, if this cannot block; return whether all are open.

    `flags` of open(2): int64[n], one for each path, or one for all. Opens no file before Linux
    5.12, or in a sandbox that forbids openat2(2).
    """
    # struct open_how: flags, mode, resolve
    hows = np.full((len(paths), 3), (0, 0, _RESOLVE_CACHED), np.uint64)
    hows[:, 0] = np.bitwise_or(flags, os.O_CLOEXEC)
    how = range(hows.ctypes.data, hows.ctypes.data + hows.nbytes, hows.strides[0])
    missing = [index for index, fd in enumerate(fds) if fd < 0]
    arguments = (repeat(_OPENAT2), repeat(libc.AT_FDCWD), [paths[index] for index in missing])
    each = [how[index] for index in missing]
    opened = map(libc.openat2_with_gil, *arguments, each, repeat(hows.strides[0]))
    for index, fd in zip(missing, opened, strict=True):
        fds[index] = fd
    return min(fds, default=0) >= 0


def open_missing(
    fds: list[int],
    paths: Sequence[bytes],
    flags: IntArray | int,
    *,
    wait: bool = True,
    close_others: Callable[[], None] = lambda: None,
) -> None:
    """Open `paths[i]` as `fds[i]` where -1; may block, and so yields the turn.

    `flags` as of `open_cached()`. At the limit of open files, `fds` is cut to the first files,
    which are open. If not even one can be opened, `close_others()` closes files that can be
    reopened, and the call waits some seconds for other threads to close files; without `wait`,
    `fds` is then empty.

    Raises:
        OSError: a file cannot be opened; names the path of the first. The others stay in `fds`.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            for index in open_each(fds, paths, flags):
                if fds[index] < 0:  # again, for the errno
                    fds[index] = _open(paths[index], int(np.broadcast_to(flags, len(paths))[index]))
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            first = fds.index(-1)
            # Removed at once: closed a second time, a number might be another thread's new file.
            close_all(map(fds.pop, repeat(first, len(fds) - first)))
            if first or not wait:
                return
            if time.monotonic() > deadline:
                raise
        close_others()
        time.sleep(_RETRY_S)
        fds += [-1] * len(paths)


def open_each(fds: list[int], paths: Sequence[bytes], flags: IntArray | int) -> list[int]:
    """Open `paths[i]` as `fds[i]` where -1, which stays after a failure.

    `flags` as of `open_cached()`. May block, and so yields the turn. Returns the indices that were
    -1.
    """
    yield_turn()
    missing = [index for index, fd in enumerate(fds) if fd < 0]
    wanted = (paths[index] for index in missing)
    how = np.broadcast_to(np.bitwise_or(flags, os.O_CLOEXEC), len(paths))[missing].tolist()
    opened = map(libc.open_, wanted, how)
    for index, fd in zip(missing, opened, strict=True):
        fds[index] = fd
    return missing


def _open(path: bytes, flags: int) -> int:
    try:
        return open_nonblocking(path, flags)
    except OSError as error:
        if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
            raise os_error(error.errno or errno.EIO, path) from None
    # O_DIRECT refuses directories with EINVAL, too.
    if os.path.isdir(path):
        raise os_error(errno.EISDIR, path)
    hint = ": its file system does not support O_DIRECT; use the option direct=False"
    raise os_error(errno.EINVAL, path, hint)


def statuses(fds: Sequence[int], paths: Sequence[bytes], local: bool) -> npt.NDArray[np.void]:
    """Query the status of n open files, STATX[n]; `local`: on file systems that are `is_local()`.

    An `OSError` names the path.
    """
    status, unknown = np.zeros(len(fds), STATX), list(range(len(fds)))
    if local:
        addresses = range(status.ctypes.data, status.ctypes.data + status.nbytes, STATX.itemsize)
        arguments = (repeat(b""), repeat(libc.AT_EMPTY_PATH), repeat(_STATX_BASIC_STATS), addresses)
        results = map(libc.statx_with_gil, fds, *arguments)
        unknown = [index for index, failed in enumerate(results) if failed]
    for index in unknown:
        with named(paths[index]):
            status[index] = _row(os.fstat(fds[index]))
    return status


def statuses_of_paths(paths: Sequence[bytes], local: bool = False) -> npt.NDArray[np.void]:
    """Query the status of the files at n paths, STATX[n]; follows links, raises as `statuses()`.

    `local`: the files are open, on file systems that are `is_local()`. Otherwise the call may
    block.
    """
    status = np.zeros(len(paths), STATX)
    addresses = range(status.ctypes.data, status.ctypes.data + status.nbytes, STATX.itemsize)
    arguments = (repeat(0), repeat(_STATX_BASIC_STATS), addresses)
    statx = libc.statx_with_gil if local else libc.statx
    results = list(map(statx, repeat(libc.AT_FDCWD), paths, *arguments))
    for index in [index for index, failed in enumerate(results) if failed]:
        with named(paths[index]):
            status[index] = _row(os.stat(paths[index]))
    return status


def regular_sizes(fds: Sequence[int], paths: Sequence[bytes], local: bool) -> IntArray:
    """Query the sizes of n open, regular files in bytes, int64[n]; otherwise as `statuses()`."""
    return regular_statuses(fds, paths, local)["size"]


def regular_statuses(
    fds: Sequence[int], paths: Sequence[bytes], local: bool
) -> npt.NDArray[np.void]:
    """Query the status as `statuses()`, and refuse files that are not regular."""
    status = statuses(fds, paths, local)
    others = np.flatnonzero(status["mode"] & 0o170000 != stat.S_IFREG)
    for index in others[:1].tolist():
        if stat.S_ISDIR(int(status["mode"][index])):
            raise os_error(errno.EISDIR, paths[index])
        raise os_error(errno.EINVAL, paths[index], ": not a regular file")
    return status


def close_all(fds: Iterable[int]) -> None:
    """Close all descriptors except negative ones; consecutive ones by one system call.

    Ctrl-C does not stop a call once begun. Iterating over `fds` may pop from a container.
    """
    # One bytecode instruction: a Ctrl-C in between would lose the descriptors removed so far.
    mine = [*fds]
    try:
        ordered = sorted(filter((-1).__lt__, mine))
        neighbours = zip([-2, *ordered], [*ordered, -2], strict=True)
        gaps = [(before, after) for before, after in neighbours if after != before + 1]
        starts = [after for _, after in gaps[:-1]]
        ends = [before + 1 for before, _ in gaps[1:]]
        closing = map(os.closerange, starts, ends)
    except BaseException:
        close_all(mine)
        raise
    # One bytecode instruction: a Ctrl-C in between would leave the rest open.
    deque(closing, maxlen=0)


def _row(status: os.stat_result) -> tuple[int, ...]:
    """A row of STATX."""
    inode, size, *mtime = state_of(status)
    return status.st_mode & 0xFFFF, inode, size, *divmod(status.st_ctime_ns, 10**9), *mtime
