"""The stage of work of each thread, told to its observer if there is one; the turn of a lane."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol, TypeAlias

Describe: TypeAlias = Callable[[], str]


class Watch(Protocol):
    """The observer of one thread; see the functions of the same names.

    Attributes:
        log: the stages of the batch under way, each with `time.monotonic_ns()` of its beginning.
    """

    log: list[tuple[str, int]]

    def begin(self, batch: int, count: int = 1) -> None:
        """See `begin()`."""

    def note(self, describe: Describe | None) -> Describe | None:
        """See `note()`."""

    def leave(self) -> None:
        """See `leave()`."""


class _Mine(threading.local):
    """The observer of each thread, and the function that gives the turn of a lane to another."""

    watch: Watch | None = None
    give_turn: Callable[[], None] = staticmethod(lambda: None)


_mine = _Mine()


def observed_by(watch: Watch | None) -> Watch | None:
    """Set the observer of the calling thread, or none; return the previous one."""
    before, _mine.watch = _mine.watch, watch
    return before


def begin(batch: int, count: int = 1) -> None:
    """Begin a batch, or `count` that are read at once, of which this is the first; in a lane."""
    if (watch := _mine.watch) is not None:
        watch.begin(batch, count)


def enter(stage: str) -> None:
    """End the current stage of this thread's batch, and begin the next one.

    Stages are "queued" (for the processors), "opening", "reading", "checking", "decoding",
    "copying", and "waiting" for a batch; before there are lanes, "finding samples" and "opening
    the backend".
    """
    if (watch := _mine.watch) is not None:
        watch.log.append((stage, monotonic_ns()))


def note(describe: Describe | None) -> Describe | None:
    """Set the description of this thread's work, such as files; return the previous one.

    Called seldom, in any thread, and never after the batch has ended.
    """
    return None if (watch := _mine.watch) is None else watch.note(describe)


def leave() -> None:
    """End what was begun, after an error too; called by a lane."""
    if (watch := _mine.watch) is not None:
        watch.leave()


def turn_given_by(give: Callable[[], None]) -> Callable[[], None]:
    """Set the function that gives the calling thread's turn away; return the previous one."""
    before, _mine.give_turn = _mine.give_turn, give
    return before


def yield_turn() -> None:
    """Let another lane start; called before blocking. Does nothing in a thread without a turn."""
    _mine.give_turn()
