"""Kernel AIO: many reads at once, from any thread of the process.

AIO reads from the page cache synchronously, inside io_submit. It is still the fastest way there: a
whole batch is copied by one call, which releases the interpreter lock once. io_uring would do as
well, but container runtimes forbid it by default and allow AIO.

Creating a context is cheap; destroying one takes the kernel some 30 ms, and a machine has a limited
number of events for all contexts together (fs.aio-max-nr, by default 65,536). So contexts belong to
the process: `read()` borrows one for as long as it reads.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import BackendUnavailable
from .aio_context import AioContext, NoneLeftError

_MOST_IDLE = 64  # contexts of one depth that a process keeps; it needs one per lane that reads
_RETRY_S = 0.005  # while other lanes have every context that this machine allows


def read(
    depth: int,
    fds: npt.ArrayLike,
    iovecs: npt.NDArray[np.void],
    offsets: npt.ArrayLike,
    rw_flags: int = 0,
) -> IntArray:
    """Read n ranges of files with a context of the process; may be called from any thread.

    Args:
        depth: how many reads are under way at once, at most.
        fds: as for `AioContext.read()`, like the following arguments.
        iovecs: where the bytes go.
        offsets: where each read starts.
        rw_flags: flags of preadv2(2).

    Returns:
        int64[n], as `AioContext.read()`.

    Raises:
        BackendUnavailable: the kernel has no context for this process.
    """
    pool = _pool(depth)
    context = pool.borrow(wait=True)
    results = context.read(fds, iovecs, offsets, rw_flags)  # if it raises, the context is closed
    pool.give_back(context)
    return results


def require(depth: int) -> None:
    """Check that `read()` works with this depth. The context is kept for the first read.

    Raises:
        BackendUnavailable: it does not; the message says why and what to do.
    """
    pool = _pool(depth)
    if not pool.count_open():
        pool.give_back(pool.borrow(wait=False))


def unavailable(depth: int = 1) -> BackendUnavailable | None:
    """What `require()` raises, or None."""
    try:
        require(depth)
    except BackendUnavailable as reason:
        return reason.with_traceback(None)
    return None


class _Pool:
    """The contexts of one depth, in one process."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._idle: list[AioContext] = []
        self._ids: list[ctypes.c_ulong] = []  # of all contexts that may be open, idle or borrowed
        self._creating = threading.Lock()

    def borrow(self, *, wait: bool) -> AioContext:
        """An idle context, or a new one; one that is not given back is closed when it is collected.

        Args:
            wait: if the machine has no context left but other threads have some of this pool, wait
                for one of these.

        Raises:
            BackendUnavailable: there is none.
        """
        while True:
            try:
                return self._idle.pop()
            except IndexError:
                pass
            try:
                return self._create()
            except NoneLeftError:
                if _close_an_idle_one():
                    continue
                if not (wait and self.count_open()):
                    raise
            time.sleep(_RETRY_S)

    def give_back(self, context: AioContext) -> None:
        """Keep a context for the next read, or close it if there are enough."""
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(context)
        else:
            context.close()

    def close_an_idle_one(self) -> bool:
        """Give an idle context back to the kernel; whether there was one."""
        try:
            self._idle.pop().close()
        except IndexError:
            return False
        return True

    def count_open(self) -> int:
        """How many contexts are open, idle or borrowed."""
        return sum(1 for known in list(self._ids) if known.value)

    def _create(self) -> AioContext:
        with self._creating:
            context = AioContext(self._depth)
            self._ids = [known for known in self._ids if known.value] + [context.id]
        return context


_pools: dict[tuple[int, int], _Pool] = {}  # by process and depth: a forked child uses its own only


def _pool(depth: int) -> _Pool:
    key = os.getpid(), depth
    return _pools.get(key) or _pools.setdefault(key, _Pool(depth))


def _close_an_idle_one() -> bool:
    pools = [pool for (process, _), pool in list(_pools.items()) if process == os.getpid()]
    return any(pool.close_an_idle_one() for pool in pools)
