"""Work in several threads that an interrupt ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextmanager
def in_threads(
    threads: int, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Iterator[Result]]:
    """The results of `function` for all tasks, in their order.

    When it is left, no thread is at work any more: by an exception after the tasks under way, the
    others are not begun.
    """
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool.map(function, tasks)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
