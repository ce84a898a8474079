"""Waits that a Ctrl-C ends within a second.

Python handles a signal in the main thread, between two bytecode instructions. A wait without a
timeout is not woken if another thread receives the signal, nor if the signal arrives while the main
thread releases the interpreter lock to begin the wait. The Ctrl-C would then have no effect before
the storage has answered. So the main thread waits in steps.
"""

import threading
import time
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
    """Wait for the end of a thread, which holds `running` until then."""
    while thread.is_alive():
        thread.join(_STEP)
    while running.locked():  # before Python 3.13, no join waits after one that a Ctrl-C has ended
        time.sleep(0.01)
