"""Calls that no Ctrl-C interrupts."""

import contextlib
from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue

from .waiting import Item, take


def run_uninterrupted(call: Callable[[], Item]) -> Item:
    """Run `call` in a thread, where no Ctrl-C interrupts it, and return its result.

    For reads outside of batches. A Ctrl-C is raised when `call` has ended.
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
