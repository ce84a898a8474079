"""The slot for an observer of a reader, with nobody in it."""

from collections.abc import Sized
from contextlib import AbstractContextManager, nullcontext

from ..contract.reader import Reader


class Observer:
    """Sees what a reader does; this one sees nothing. `observing` has the one that users get.

    An observer must not refer to the reader's stream, which would then never be collected.
    """

    def opening(self) -> AbstractContextManager[object]:
        """The calling thread opens the reader in the block."""
        return nullcontext()

    def begin(self, reader: Reader, depth: int, bad: Sized) -> None:
        """The reader begins to read, `depth` batches ahead; `bad` are its bad samples."""

    def be_lane(self, lane: int) -> None:
        """The calling thread is this lane of the reader from now on."""

    def ask(self, index: int) -> None:
        """The calling thread asks for a batch, and waits for it until `answer()`."""

    def answer(self) -> None:
        """The batch is there, or an error."""

    def count(self, ready: int, nbytes: int) -> None:
        """A batch of `nbytes` was given when `ready` batches had been read ahead."""

    def end(self) -> None:
        """The reader reads no more. May be called twice."""

    def forget(self) -> None:
        """The reader is closed. May be called twice."""
