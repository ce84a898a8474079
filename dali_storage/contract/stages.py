"""What each thread of a reader does, stage by stage, for the reader's observer; and its turn."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TypeAlias

Describe: TypeAlias = Callable[[], str]
Log: TypeAlias = list[tuple[str, int]]


@dataclass(slots=True, eq=False)
class Activity:
    """The work of one thread. Only this thread changes the object; all others may read it.

    Attributes:
        name: the names of the reader and the lane, such as "Reader:0".
        log: the stages of the batch under way, each with `time.monotonic_ns()` of its beginning;
            empty between two batches.
        native_id: the kernel's number of the thread, None before it has begun.
        batch: the number of the batch under way; None if there is none.
        describe: describes the work, such as files; None if unknown.
    """

    name: str
    log: Log = field(default_factory=list)
    native_id: int | None = None
    batch: int | None = None
    describe: Describe | None = None

    @property
    def described(self) -> str:
        """The description of the work; empty if unknown."""
        with contextlib.suppress(Exception):  # the reader may be closed meanwhile
            return self.describe() if self.describe is not None else ""
        return ""


class _Mine(threading.local):
    """The activity of each thread if it is observed, and the function that gives its turn away.

    Not arguments: stages begin and turns end in functions far below those of a backend, which get
    the number of a lane and nothing else. Reading the attribute takes 30 ns.
    """

    activity: Activity | None = None
    give_turn: Callable[[], None] = staticmethod(lambda: None)


mine = _Mine()


def enter(stage: str, describe: Describe | None = None) -> None:
    """End the current stage of this thread's batch, and begin the next one.

    Stages are "queued" (for the processors), "opening", "reading", "checking", "decoding",
    "copying", and "waiting" for a batch; before there are lanes, "finding samples" and "opening
    the backend". `describe` describes the work from now on; None: as before.
    """
    if (activity := mine.activity) is not None:
        activity.log.append((stage, monotonic_ns()))
        activity.describe = describe or activity.describe


def note(describe: Describe | None) -> Describe | None:
    """Set the description of the work in this stage; return the previous one, to be set again."""
    if (activity := mine.activity) is None:
        return None
    before, activity.describe = activity.describe, describe
    return before


def turn_given_by(give: Callable[[], None]) -> Callable[[], None]:
    """Set the function that gives the calling thread's turn away; return the previous one."""
    before, mine.give_turn = mine.give_turn, give
    return before


def yield_turn() -> None:
    """Let another lane start; called before blocking. Does nothing in a thread without a turn."""
    mine.give_turn()
