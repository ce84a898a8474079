"""A thread for reads that belong to no batch, such as those of opening."""

import contextlib
from _thread import start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


def run_in_lane(call: Callable[[], Result]) -> Result:
    """Run `call` in a thread, where no Ctrl-C interrupts it, and return its result.

    A Ctrl-C is raised when `call` has ended.
    """
    results, errors, ended = list[Result](), list[BaseException](), SimpleQueue[None]()
    try:
        start_new_thread(_run, (call, results, errors, ended))
        ended.get()
    except KeyboardInterrupt:
        while not results and not errors:
            with contextlib.suppress(KeyboardInterrupt):
                ended.get()
        raise
    if errors:
        raise errors.pop()  # the error keeps this frame, which must not keep the error
    return results[0]


def _run(
    call: Callable[[], Result],
    results: list[Result],
    errors: list[BaseException],
    ended: SimpleQueue[None],
) -> None:
    try:
        results.append(call())
    except BaseException as error:
        errors.append(error)
    ended.put(None)
