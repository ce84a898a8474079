"""A thread with an event loop, which ends before the interpreter does."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from typing import Any

from ....runtime.machine import show_name, start_thread
from ..errors import FORKED

_CLOSING = 3.0  # seconds
_STEP = 0.1  # seconds between two looks whether the thread still runs


class LoopThread:
    """An event loop in a thread of its own, which `start()` starts at first use."""

    def __init__(self, end: Callable[[BaseException | None], None]) -> None:
        """The thread calls `end` at last, to cancel its tasks, with the error that has ended it."""
        self._end, self._process = end, os.getpid()
        self._lock = threading.RLock()  # reentrant: the garbage collector may close
        self._loop: asyncio.SelectorEventLoop | None = None  # while it takes calls
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._closed = False

    def start(self) -> None:
        """Start the thread, if there was none.

        Raises RuntimeError if this process was forked, or cannot start a thread.
        """
        if os.getpid() != self._process:
            raise RuntimeError(FORKED)
        with self._lock:
            if not (self._thread or self._closed):
                loop, name = asyncio.SelectorEventLoop(), "dali_storage:get:network"
                loop.set_exception_handler(self._fail)
                thread = threading.Thread(target=self._work, args=[loop], name=name, daemon=True)
                try:
                    start_thread(thread, "raise the limit")
                except RuntimeError:
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
                atexit.register(self.close)  # or it might write to freed memory

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the thread, soon, unless the thread has ended."""
        with self._lock:
            if self._loop:
                self._loop.call_soon_threadsafe(function, *arguments)

    def wait_for(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the thread; return when it, or the thread, has ended."""
        done = SimpleQueue[object]()
        self.call(lambda: done.put(function(*arguments)))
        while self._thread and self._thread.is_alive():
            with suppress(Empty):
                done.get(timeout=_STEP)
                break

    def close(self) -> None:
        """End the thread. Closing twice is fine, in any thread."""
        self._closed = True
        if (thread := self._thread) and os.getpid() == self._process:
            with self._lock:
                if self._loop:
                    self._loop.call_soon_threadsafe(self._loop.stop)
            if thread is not threading.current_thread():
                thread.join(_CLOSING)

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the loop after an error of a callback, which would otherwise lose a request."""
        self._error = context.get("exception")
        loop.stop()

    def _work(self, loop: asyncio.SelectorEventLoop) -> None:
        show_name()
        with closing(loop):
            try:
                loop.run_forever()
            except BaseException as error:
                self._error = error
            with self._lock:
                self._loop = None  # earlier calls are made below
            atexit.unregister(self.close)
            loop.run_until_complete(self._finish())

    async def _finish(self) -> None:
        self._end(self._error)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*tasks, return_exceptions=True)
