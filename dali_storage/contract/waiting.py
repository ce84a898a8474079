"""Waits that a Ctrl-C ends within a second, whatever they wait for; and calls that none interrupts.

Python handles a signal in the main thread, between two bytecode instructions. A wait without a
timeout is not woken by a signal that another thread takes, nor by one that comes while the main
thread gives up the interpreter lock to begin the wait. The Ctrl-C would then count only when the
storage has answered. So the main thread waits in steps.
"""

import contextlib
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

_STEP = 1.0  # seconds


def take(queue: SimpleQueue[Item]) -> Item:
    """Wait for the next item of a queue."""
    while True:
        try:
            return queue.get(timeout=_STEP)
        except Empty:
            pass


def join(thread: threading.Thread, running: threading.Lock) -> None:
    """Wait until a thread has ended, which holds `running` for as long."""
    while thread.is_alive():
        thread.join(_STEP)
    while running.locked():  # before Python 3.13, no join waits after one that a Ctrl-C has ended
        time.sleep(0.01)


def run_in_lane(call: Callable[[], Item]) -> Item:
    """Run `call` in a thread, where no Ctrl-C interrupts it, and return its result.

    For reads that belong to no batch. A Ctrl-C is raised when `call` has ended.
    """
    results, errors, ended = list[Item](), list[BaseException](), SimpleQueue[None]()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)
        ended.put(None)

    try:
        start_new_thread(run, ())
        take(ended)
    except KeyboardInterrupt:
        while not results and not errors:
            with contextlib.suppress(KeyboardInterrupt):
                take(ended)
        raise
    if errors:
        raise errors.pop()  # the error keeps this frame, which must not keep the error
    return results[0]
