"""Queues of libxnvme: many commands under way at once, from Python at little cost.

A queue has as many command contexts as it is deep: 128 bytes each, one after the other. They are
taken once and used again and again, and filled through numpy views. What has completed is seen in
them, too. A completion is told to a callback only: that is all that every implementation promises
(some never write a result). A callback into Python would cost as much as the command, and swallow a
Ctrl-C. So the callback is bzero(3) of the C library, which has the shape of one: called with the
context and the number 8 it clears the first eight bytes of the command. Those are opcode, flags,
identifier and namespace, never all zero while the command is under way.

The layout is that of struct xnvme_cmd_ctx, libxnvme_cmd.h.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import BackendUnavailable
from .device import LIBRARY_LOCK, Device, foreign_memory

CONTEXT = np.dtype(
    {
        "names": ["head", "state", "result", "status", "device"],
        "formats": ["V80", "<u8", "<i8", "<u2", "<u8"],
        "offsets": [0, 0, 64, 78, 80],
        "itemsize": 128,
    }
)
"""head: the NVMe command (64 bytes) and its completion (16 bytes)."""

UNDER_WAY, NOTHING_TO_DO = 0, 1

_DEPTHS = tuple(1 << power for power in range(12))  # what libxnvme takes: below 4096
_STATE_BYTES = 8
_FREE = 0xFF  # the state of a context that has no command
_PHASE_BITS, _SCT_AND_SC = np.uint16(1), np.uint16(0x7FF)  # of a status
# With these, to submit is no more than to write to memory; the others make system calls.
_QUICK = frozenset(("io_uring", "io_uring_cmd", "emu", "nil", "upcie"))
_GROUPS = 4  # that commands are submitted and looked after in
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 1e-3  # seconds
_TROUBLE = 2.0  # seconds for which polling may fail, before the device is given up

_abandoned: list[Any] = []  # memory that a device may still write to, and its queue


def require_depth(backend: str, depth: int) -> None:
    """Refuse a queue depth that libxnvme does not take.

    Raises:
        ValueError: it is none.
    """
    if type(depth) is not int or depth not in _DEPTHS:
        raise ValueError(
            f"{backend}: queue_depth must be a power of two from {_DEPTHS[0]} to {_DEPTHS[-1]}, "
            f"not {depth!r}"
        )


class Work(ABC):
    """Commands for a queue to run, known by number.

    Attributes:
        count: how many there are; the numbers are from 0.
    """

    count: int

    @abstractmethod
    def submit(self, numbers: list[int], contexts: list[int]) -> Sequence[int]:
        """Submit commands, each in the context given for it, which holds an older head.

        Returns:
            For each: UNDER_WAY, NOTHING_TO_DO, or -errno where it is refused.
        """

    @abstractmethod
    def finish(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        """Take the completions of commands.

        Args:
            numbers: int64[k], which commands.
            results: int64[k], what the implementation reports: most of them, bytes.
            statuses: uint16[k], SCT << 8 | SC; 0 is success.

        Returns:
            The commands that are to be submitted again.
        """

    @abstractmethod
    def refuse(self, number: int, error: int) -> None:
        """Learn that a command cannot be submitted; `error` is an errno."""

    @abstractmethod
    def waiting(self) -> None:
        """Called when there is nothing to do but to wait."""


class Queue:
    """A queue of a device, for one thread at a time. `with` or `close()` ends it.

    Attributes:
        device: what it is a queue of.
        contexts: CONTEXT[depth], the command contexts: libxnvme's memory.
        heads: their heads.
        pointers: their addresses.
    """

    def __init__(
        self, device: Device, depth: int, *, spin: bool = False, patience: float | None = None
    ) -> None:
        """Make it.

        Args:
            device: stays open as long as the queue.
            depth: commands under way at once, see `require_depth`.
            spin: ask for completions all the time, which takes a whole processor; otherwise at
                intervals of 0.05 to 1 ms, while there are none.
            patience: seconds without any completion after which the device is given up. None: for
                what always answers in the end, such as the kernel.

        Raises:
            OSError: there is no such queue.
        """
        self.device = device
        self._handle: object = device.handle
        self._process = os.getpid()
        self._pointer = ctypes.c_void_p()
        library = device.library
        with LIBRARY_LOCK:
            error = library.xnvme_queue_init(device.pointer, depth, 0, ctypes.byref(self._pointer))
        if error:  # most are negative
            self._handle = None  # whoever has the traceback has this, too
            raise OSError(abs(error), os.strerror(abs(error)))
        self.poke = library.xnvme_queue_poke
        self._outstanding = library.xnvme_queue_get_outstanding
        self.functions: Any = library.quick if device.io in _QUICK else library
        self._spin = spin
        self._patience = patience
        self._memory: list[object] = []  # what commands may be writing to: none or one
        try:
            self.contexts, self.pointers = self._take_contexts(depth)
        except BaseException:
            self.close()
            raise
        self.heads = self.contexts["head"]
        self._states = self.contexts["state"]
        self._results, self._statuses = self.contexts["result"], self.contexts["status"]
        self._reset()

    def run(self, work: Work, memory: object) -> None:
        """Run the commands of `work`, keeping the queue full; return when none is under way.

        Nor is any when an exception leaves it, whatever the reason.

        Args:
            work: the commands.
            memory: what owns the memory that they write to. It is kept for ever if the device
                does not answer, because it might do so later.

        Raises:
            OSError: the device does not answer (ETIMEDOUT), or did not in an earlier run (ENODEV).
            ValueError: the queue is closed.
            RuntimeError: it was made in another process, from which this one was forked.
        """
        self._require_usable()
        self._settle()
        ctypes.set_errno(0)  # "emu" tells it of a short read, which leaves it as it was
        self._memory = [memory]
        try:
            self._progress = time.monotonic()
            self._run(work)
            self._memory = []
        except BaseException:
            try:
                self._settle()
            finally:  # what ends it is a Ctrl-C between two of its rounds
                self._settle()
            raise

    def poll(self) -> int:
        """Have libxnvme submit what is not submitted yet, and mark what has completed.

        Returns:
            How many have.

        Raises:
            OSError: it has failed to for seconds.
        """
        failing_since = None
        while (found := int(self.poke(self._pointer, 0))) < 0:
            failing_since = failing_since or time.monotonic()
            self._wait(-found, failing_since, _TROUBLE)
        return found

    def close(self) -> None:
        """End it; twice is fine.

        It is left as it is where the device has not answered, and in a forked process.
        """
        if os.getpid() != self._process:
            return
        self._settle()
        # Forgotten first: after a Ctrl-C it may be lost, but not ended twice.
        pointer, self._pointer = self._pointer, ctypes.c_void_p()
        if not pointer:
            return
        if self.device.is_gone:
            _abandoned.append((pointer, self._handle))
        else:
            with LIBRARY_LOCK:
                self.device.library.xnvme_queue_term(pointer)
        self._handle = None

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _require_usable(self) -> None:
        if not self._pointer:
            raise ValueError("the queue is closed")
        if os.getpid() != self._process:
            raise RuntimeError("a reader of libxnvme cannot be used in a forked process: open one")
        if self.device.is_gone:
            what = "has not answered before" if self.device.lost else "is not ours any more"
            raise OSError(errno.ENODEV, f"libxnvme: the device {what}")

    def _take_contexts(self, depth: int) -> tuple[npt.NDArray[np.void], list[ctypes.c_void_p]]:
        library = self.device.library
        taken = [library.xnvme_queue_get_cmd_ctx(self._pointer) or 0 for _ in range(depth)]
        taken.sort()
        if not taken[0] or (np.diff(taken) != CONTEXT.itemsize).any():
            raise BackendUnavailable(
                f"{library.path} keeps its command contexts in another way than 0.7.5 and main do"
            )
        bzero = ctypes.cast(ctypes.CDLL(None).bzero, ctypes.c_void_p)
        library.xnvme_queue_set_cb(self._pointer, bzero, _STATE_BYTES)
        memory = foreign_memory(taken[0], depth * CONTEXT.itemsize)
        return memory.view(CONTEXT), [ctypes.c_void_p(address) for address in taken]

    def _reset(self) -> None:
        self._free = list(range(len(self.pointers)))
        self._owners = np.zeros(len(self.pointers), np.int64)  # numbers of commands
        self._states[:] = _FREE
        self._group, self._pause, self._paused = 1, _SHORTEST_PAUSE, False

    def _run(self, work: Work) -> None:
        todo, depth = deque(range(work.count)), len(self.pointers)
        most = depth // _GROUPS
        self._group = max(most if work.count >= most else work.count // _GROUPS, 1)
        while todo or len(self._free) < depth:
            # A few at a time: to look after each by itself would cost several times as much.
            if todo and len(self._free) * _GROUPS >= depth:
                self._submit(work, todo)
            if len(self._free) < depth:
                todo.extend(self._reap(work))

    def _submit(self, work: Work, todo: deque[int]) -> None:
        count = min(len(todo), len(self._free))
        contexts, self._free = self._free[-count:], self._free[:-count]
        numbers = [todo.popleft() for _ in range(count)]
        codes = work.submit(numbers, contexts)
        self._owners[contexts] = numbers
        if any(codes):
            idle = len(self._free) + len(codes) - codes.count(UNDER_WAY) == len(self.pointers)
            for number, context, code in zip(numbers, contexts, codes, strict=True):
                if code != UNDER_WAY:
                    self._states[context] = _FREE
                    self._free.append(context)
                if code in (-errno.EAGAIN, -errno.EBUSY) and not idle:
                    todo.append(number)  # when something else has completed
                elif code < 0:
                    work.refuse(number, -code)

    def _reap(self, work: Work) -> list[int]:
        self.poll()
        done = (self._states == 0).nonzero()[0]
        again = self._finish(work, done) if done.size else []
        groups = done.size // self._group
        if self._paused:  # the pauses double until a group is found done
            self._pause = max(self._pause / min(1 << groups, 4), _SHORTEST_PAUSE)
            self._paused = False
        if not groups and len(self._free) < len(self.pointers):
            work.waiting()
            self._wait(errno.ETIMEDOUT, self._progress, self._patience)
        return again

    def _finish(self, work: Work, done: IntArray) -> list[int]:
        self._states[done] = _FREE
        self._free += done.tolist()
        self._progress = time.monotonic()
        statuses = self._statuses[done] >> _PHASE_BITS & _SCT_AND_SC
        return work.finish(self._owners[done], self._results[done], statuses)

    def _wait(self, error: int, since: float, limit: float | None) -> None:
        """Pause, after polling in vain; after too many seconds of it the device is given up."""
        if limit is not None and time.monotonic() - since > limit:
            self.device.lost = True
            under_way = len(self.pointers) - len(self._free)
            what = f"libxnvme: the device does not answer; {under_way} commands are under way"
            raise OSError(error, what)
        if not self._spin:
            time.sleep(self._pause)
            self._pause, self._paused = min(2 * self._pause, _LONGEST_PAUSE), True

    def _settle(self) -> None:
        """Wait until nothing is under way, or the device is given up and the memory kept for ever.

        Ctrl-C does not end it. One between two rounds would: then the memory is kept, until this
        is called again.
        """
        while self._memory:
            try:  # not contextlib.suppress(): it is Python itself, and can be interrupted
                self._progress = time.monotonic()
                self._drain()
                if self.device.is_gone:
                    _abandoned.append((*self._memory, self))
                else:
                    self._reset()
                self._memory = []
            except BaseException:  # Ctrl-C again, or it is given up now
                pass

    def _drain(self) -> None:
        while not self.device.is_gone and self._outstanding(self._pointer):
            if not self.poll():
                self._wait(errno.ETIMEDOUT, self._progress, self._patience)
