"""Queues of libxnvme: many commands in flight, at little cost in Python.

A queue of depth n has n command contexts, 128 bytes each and one after the other. The contexts are
allocated once, reused, and accessed as numpy columns. libxnvme reports a completion only by a
callback, the only promise of every implementation (some never write a result). A callback into
Python would cost as much as the command. So the callback is bzero(3) of the C library, which has a
fitting signature: called with the context and the number 8, it clears the first 8 bytes of the
command. These are opcode, flags, identifier and namespace, never all zero for a command in flight.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from ...contract.options import Option
from ..linux import libc
from .abi import CONTEXT, PHASE_BITS, SCT_AND_SC
from .device import LIBRARY_LOCK, XnvmeDevice, foreign_memory

UNDER_WAY, NOTHING_TO_DO = 0, 1  # codes of a submission

QueueDepth: TypeAlias = Annotated[int, Option(tuple(1 << power for power in range(12)))]
"""An option. libxnvme requires a power of two below 4096."""

Statuses: TypeAlias = npt.NDArray[np.uint16]  # SCT << 8 | SC

_STATE_BYTES = 8
_FREE = 0xFF  # the state of a context without a command
# Submission by these only writes to memory; the others make system calls.
_NO_SYSTEM_CALL = frozenset(("io_uring", "io_uring_cmd", "emu", "nil", "upcie"))
_GROUPS = 4  # groups per queue in which commands are submitted and reaped
_SHORTEST_PAUSE, _LONGEST_PAUSE = 50e-6, 1e-3  # seconds
_FAILING_LIMIT = 2.0  # seconds of failing polls before the device is given up

_leaked_on_purpose: list[Any] = []  # memory with possible late writes by a device, and its queue


class Commands(ABC):
    """Commands for a queue, which submit themselves and process their completions.

    Attributes:
        count: the number of commands; each is identified by an index.
        will_wait: called before waiting for completions, with nothing else to do.
    """

    count: int
    will_wait: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def submit(self, indices: list[int], contexts: list[int]) -> Sequence[int]:
        """Submit commands, each in its context, whose head still holds an older command.

        Returns one code per command: UNDER_WAY, NOTHING_TO_DO, or -errno if libxnvme rejects it.
        """

    @abstractmethod
    def complete(self, indices: IntArray, results: IntArray, statuses: Statuses) -> list[int]:
        """Process the completions of k commands; return the indices of commands to resubmit.

        `results` has the values reported by the implementation: bytes, mostly.
        """

    @abstractmethod
    def reject(self, index: int, error: int) -> None:
        """Handle a command that cannot be submitted; `error` is an errno."""


class Queue:
    """A queue of a device, for one thread at a time.

    Attributes:
        device: the device.
        contexts: CONTEXT[depth], the command contexts, in libxnvme's memory.
        heads: the column of the contexts' heads.
        pointers: the addresses of the contexts.
    """

    def __init__(
        self, device: XnvmeDevice, depth: int, *, spin: bool = False, timeout_s: float | None = None
    ) -> None:
        """Create a queue for `depth` commands at once, or raise an OSError.

        The device stays open as long as the queue. With `spin`, the queue is polled without pauses,
        which uses a whole processor; else the pauses are 0.05 to 1 ms. After `timeout_s` seconds
        without a completion the device is given up; the kernel always answers and needs no timeout.
        """
        self.device = device
        self._handle: object = device.handle
        self._process = os.getpid()
        self._pointer = ctypes.c_void_p()
        library = device.library
        with LIBRARY_LOCK:
            error = library.xnvme_queue_init(device.pointer, depth, 0, ctypes.byref(self._pointer))
        if error:  # negative, mostly
            self._handle = None  # a traceback would keep the device open
            raise OSError(abs(error), os.strerror(abs(error)))
        self.poke = library.xnvme_queue_poke
        self._outstanding = library.xnvme_queue_get_outstanding
        self.functions: Any = library.with_gil if device.io in _NO_SYSTEM_CALL else library
        self._spin = spin
        self._timeout_s = timeout_s
        self._memory: list[object] = []  # owner of the memory being read to: none or one
        try:
            self.contexts, self.pointers = self._take_contexts(depth)
        except BaseException:
            self.close()
            raise
        self.heads = self.contexts["head"]
        self._states = self.contexts["state"]
        self._results, self._statuses = self.contexts["result"], self.contexts["status"]
        self._reset()

    def run(self, commands: Commands, memory: object) -> None:
        """Run commands, keeping the queue full; return or raise when none is in flight.

        `memory` is the owner of the destination memory, leaked on purpose if the device stops
        answering, because of possible late writes.

        Raises:
            OSError: the device does not answer (ETIMEDOUT), or did not in an earlier run (ENODEV).
            ValueError: the queue is closed.
            RuntimeError: the queue was created before this process was forked.
        """
        self.require_usable()
        ctypes.set_errno(0)  # "emu" reports this as the errno of a short read
        self._memory = [memory]
        try:
            self._progress = time.monotonic()
            self._run(commands)
            self._memory = []
        except BaseException:
            self._drain()
            raise

    def poll(self) -> int:
        """Submit pending commands and mark completed ones; return their number, or OSError."""
        failing_since = None
        while (found := int(self.poke(self._pointer, 0))) < 0:
            failing_since = failing_since or time.monotonic()
            self._wait(-found, failing_since, _FAILING_LIMIT)
        return found

    def close(self) -> None:
        """Terminate the queue. Closing twice is fine.

        In a forked process, and if the device must not be touched, the queue is leaked on purpose.
        """
        if os.getpid() != self._process:
            return
        self._drain()
        # Forget it first: a Ctrl-C may leak the queue, but must not end it twice.
        pointer, self._pointer = self._pointer, ctypes.c_void_p()
        if not pointer:
            return
        if self.device.is_gone:
            _leaked_on_purpose.append((pointer, self._handle))
        else:
            with LIBRARY_LOCK:
                self.device.library.xnvme_queue_term(pointer)
        self._handle = None

    def require_usable(self) -> None:
        """Refuse an unusable queue; raises as `run()`."""
        if not self._pointer:
            raise ValueError("the queue is closed")
        if os.getpid() != self._process:
            raise RuntimeError("a libxnvme reader cannot be used after a fork: open a new one")
        if self.device.is_gone:
            taken = "another driver has taken over the device"
            what = "the device has stopped answering" if self.device.lost else taken
            raise OSError(errno.ENODEV, f"libxnvme: {what}")

    def _take_contexts(self, depth: int) -> tuple[npt.NDArray[np.void], list[ctypes.c_void_p]]:
        library = self.device.library
        taken = [library.xnvme_queue_get_cmd_ctx(self._pointer) or 0 for _ in range(depth)]
        taken.sort()
        if not taken[0] or (np.diff(taken) != CONTEXT.itemsize).any():
            what = "does not keep its command contexts in one array, as 0.7.5 and main do"
            raise BackendUnavailable(f"{library} {what}")
        library.xnvme_queue_set_cb(self._pointer, libc.BZERO, _STATE_BYTES)
        memory = foreign_memory(taken[0], depth * CONTEXT.itemsize)
        return memory.view(CONTEXT), [ctypes.c_void_p(address) for address in taken]

    def _reset(self) -> None:
        self._free = list(range(len(self.pointers)))
        self._owners = np.zeros(len(self.pointers), np.int64)  # command index by context
        self._states[:] = _FREE
        self._backoff = _Backoff(self._spin)

    def _run(self, commands: Commands) -> None:
        todo, depth = deque(range(commands.count)), len(self.pointers)
        self._backoff.start(commands.count, depth)
        while todo or len(self._free) < depth:
            # In groups: single commands would cost several times as much.
            if todo and len(self._free) * _GROUPS >= depth:
                self._submit(commands, todo)
            if len(self._free) < depth:
                todo.extend(self._reap(commands))

    def _submit(self, commands: Commands, todo: deque[int]) -> None:
        count = min(len(todo), len(self._free))
        contexts, self._free = self._free[-count:], self._free[:-count]
        indices = [todo.popleft() for _ in range(count)]
        codes = commands.submit(indices, contexts)
        self._owners[contexts] = indices
        if any(codes):
            idle = len(self._free) + len(codes) - codes.count(UNDER_WAY) == len(self.pointers)
            for index, context, code in zip(indices, contexts, codes, strict=True):
                if code != UNDER_WAY:
                    self._states[context] = _FREE
                    self._free.append(context)
                if code in (-errno.EAGAIN, -errno.EBUSY) and not idle:
                    todo.append(index)  # try again after another completion
                elif code < 0:
                    commands.reject(index, -code)

    def _reap(self, commands: Commands) -> list[int]:
        self.poll()
        done, again = (self._states == 0).nonzero()[0], list[int]()
        if done.size:
            self._states[done] = _FREE
            self._free += done.tolist()
            self._progress = time.monotonic()
            statuses = self._statuses[done] >> PHASE_BITS & SCT_AND_SC
            again = commands.complete(self._owners[done], self._results[done], statuses)
        is_busy = self._backoff.adapt(done.size)
        if not is_busy and len(self._free) < len(self.pointers):
            commands.will_wait()
            self._wait(errno.ETIMEDOUT, self._progress, self._timeout_s)
        return again

    def _wait(self, error: int, since: float, limit: float | None) -> None:
        """Pause after a poll in vain; give up the device after too many seconds."""
        if limit is not None and time.monotonic() - since > limit:
            self.device.lost = True
            under_way = len(self.pointers) - len(self._free)
            what = f"libxnvme: the device does not answer; {under_way} commands are in flight"
            raise OSError(error, what)
        self._backoff.sleep()

    def _drain(self) -> None:
        """Wait until no command is in flight, or give up the device and leak the memory."""
        if not self._memory:
            return
        self._progress = time.monotonic()
        with contextlib.suppress(OSError):  # the device has just been given up
            while not self.device.is_gone and self._outstanding(self._pointer):
                if not self.poll():
                    self._wait(errno.ETIMEDOUT, self._progress, self._timeout_s)
        if self.device.is_gone:
            _leaked_on_purpose.append((*self._memory, self))
        else:
            self._reset()
        self._memory = []


class _Backoff:
    """Pauses between polls, doubled until a group of commands is complete after a pause."""

    def __init__(self, spin: bool) -> None:
        self._spin = spin
        self._group, self._pause, self._has_slept = 1, _SHORTEST_PAUSE, False

    def start(self, count: int, depth: int) -> None:
        """Prepare for `count` commands in a queue of `depth`; the pause stays unchanged."""
        most = depth // _GROUPS
        self._group = max(most if count >= most else count // _GROUPS, 1)

    def adapt(self, completed: int) -> bool:
        """Adapt the pause to the commands completed since the last poll.

        Returns whether a group is complete, so that submission is better than sleep.
        """
        groups = completed // self._group
        if self._has_slept:
            self._pause = max(self._pause / min(1 << groups, 4), _SHORTEST_PAUSE)
            self._has_slept = False
        return groups > 0

    def sleep(self) -> None:
        """Pause, unless spinning."""
        if not self._spin:
            time.sleep(self._pause)
            self._pause, self._has_slept = min(2 * self._pause, _LONGEST_PAUSE), True
