"""The slots of a reader, with the least in them that works: no observer, no substitutes.

A plug is a subclass: `observing.observer.Observed`, `bad_samples.replacement.Replacement`. The slot
for the order is `order.ordering.Ordering`. `dali` puts the plugs in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from ..contract._types import IntArray
from ..contract.reader import Reader
from .buffers import Room


class Observer:
    """Sees what a reader does; this one sees nothing. `observing` has the one that users get.

    An observer must not refer to the reader's stream, which would then never be collected.
    """

    def opening(self) -> AbstractContextManager[object]:
        """The calling thread opens the reader in the block."""
        return nullcontext()

    def begin(self, reader: Reader, room: Room, bad: Sized) -> None:
        """The reader begins to read, as far ahead as `room` allows; `bad` are its bad samples."""

    def be_lane(self, lane: int) -> None:
        """The calling thread is this lane of the reader from now on."""

    def ask(self, index: int) -> None:
        """The calling thread asks for a batch, and waits for it until `answer()`."""

    def answer(self, ready: int, nbytes: int | None) -> None:
        """A batch of `nbytes` is there, or None for an error; `ready` had been read when asked."""

    def end(self) -> None:
        """The reader reads no more. May be called twice."""

    def forget(self) -> None:
        """The reader is closed. May be called twice."""


class Substitute:
    """Leaves bad samples errors. `bad_samples.replacement` delivers others in their place.

    Attributes:
        replaces: True if other samples are delivered.
        bad: the errors of the known bad samples.
        only: the samples of every batch, to find bad ones; None: as in the order.
    """

    replaces: ClassVar[bool] = False
    bad: Mapping[int, Exception] = {}
    only: IntArray | None = None

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples."""
        return []

    def chosen(self, samples: IntArray) -> IntArray:
        """Return `samples`, or a copy with other samples in place of known bad ones."""
        return samples

    def add(self, found: Mapping[int, Exception]) -> None:
        """Note bad samples and their errors, which the caller has found."""
        raise next(iter(found.values()))

    def handles(self, error: Exception) -> bool:
        """Return True if another sample may be delivered after this error."""
        return False
