"""Page-locked batches that a GPU may still read."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from nvidia.dali.backend import Pipeline as Executor

from ..contract.views import Contents
from ..runtime import cuda

_Queued: TypeAlias = deque[tuple[Callable[[], None], Sequence[Contents]]]


class Hold:
    """The page-locked batches of one reader, kept until the GPU has read them.

    DALI queues copies of page-locked memory to the GPU, and drops its references to a batch before
    the copies are done. DALI promises to have read the batch when the pipeline returns the outputs
    made from the batch (documentation of fn.external_source, no_copy).
    """

    def __init__(self, executor: Executor, gpu: int) -> None:
        """Watch the executor behind a pipeline on this GPU, before the first batch is fed."""
        self._gpu = gpu
        self._fed: deque[Sequence[Contents]] = deque()
        self._queued: _Queued = deque()
        self.add = self._fed.append
        # The user may use outputs after the pipeline was dropped.
        weakref.finalize(self, _wait_for_all, os.getpid(), self._queued).atexit = False
        Executor.Outputs, Executor.ShareOutputs = _OUTPUTS, _SHARE_OUTPUTS
        _holds.setdefault(executor, []).append(self)

    def release(self, stream: int | None) -> None:
        """Release the oldest batch after the return of its outputs, on a `stream` if not None."""
        # A batch leaves a queue in the last step: Ctrl-C may keep one too long, never too short.
        while self._queued:
            wait, _ = self._queued[0]
            wait()
            self._queued.popleft()
        if self._fed:
            if stream is not None:
                # DALI has only queued the copies, and made the stream wait for them. We wait for a
                # mark in the stream when the next outputs are returned.
                self._queued.append((cuda.fence(stream, self._gpu), self._fed[0]))
            self._fed.popleft()

    def release_failed(self) -> None:
        """Release the oldest batch after the failure of an operator; DALI goes on with the next."""
        # The whole GPU: other operators may have queued copies, on unknown streams.
        with contextlib.suppress(Exception):  # if CUDA has failed, the GPU has stopped reading
            cuda.synchronize(self._gpu)
        self.release(None)


_holds = weakref.WeakKeyDictionary[Executor, list[Hold]]()


def _wait_for_all(process: int, queued: _Queued) -> None:
    if os.getpid() == process:  # CUDA does not work in a fork
        for wait, _ in queued:
            wait()


def watched(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an executor's method that returns outputs, so that batches are also released."""

    @functools.wraps(original)
    def take(executor: Executor, stream: Any = None) -> Any:
        """Return outputs, and release batches; `stream` is a ctypes.c_void_p, or None."""
        holds = _holds.get(executor, ())
        try:
            outputs = original(executor, stream)
        except Exception:  # not on KeyboardInterrupt: perhaps no outputs were returned
            for hold in holds:
                hold.release_failed()
            raise
        for hold in holds:
            hold.release(None if stream is None else stream.value or 0)
        return outputs

    return take


# Made once, so that setting a method again does not release batches twice.
_OUTPUTS, _SHARE_OUTPUTS = watched(Executor.Outputs), watched(Executor.ShareOutputs)
