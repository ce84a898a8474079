"""Where a Loader is in its epochs: pure arithmetic, without a pipeline."""

from dataclasses import dataclass

from .stats import LoaderStats


@dataclass(slots=True)
class Progress:
    """The epoch under way, or the last one; and the next one.

    An epoch begins when its first batch is asked for, and is complete when its last one was given.
    A method that moves on makes no call after its first assignment: where Python could raise
    KeyboardInterrupt, it has either done everything or nothing.

    Attributes:
        epoch: the epoch that has begun last; -1 before the first one.
        given: how many of its batches were given, before a state was saved included.
        length: how many batches it has.
        start: the epoch that begins next, and how many of its batches were given.
        restored: the place of the state that was loaded, until a batch is asked for.
        turn: what stands for the iterator of `epoch`; None if `iter()` was called since.
        valid: how many samples of the batch given last are not padding.
    """

    epoch: int = -1
    given: int = 0
    length: int = 0
    start: tuple[int, int] = 0, 0
    restored: tuple[int, int] | None = None
    turn: object = None
    valid: int = 0
    _times: tuple[int, int, float, float, float, float] = 0, 0, 0.0, 0.0, 0.0, 0.0

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the next batch, and how many of its batches were given."""
        under_way = self.turn is not None and self.given < self.length
        return (self.epoch, self.given) if under_way else self.start

    @property
    def stats(self) -> LoaderStats:
        """Of the epoch that has begun last."""
        batches, samples, begin, end, wait, storage = self._times
        return LoaderStats(batches, samples, end - begin, wait, storage)

    def set_epoch(self, epoch: int) -> None:
        """Make an epoch the next one; if it is that of the loaded state, go on from there."""
        restored = self.restored
        self.start = restored if restored and restored[0] == epoch else (epoch, 0)

    def restore(self, epoch: int, given: int, length: int) -> None:
        """Make this place the next one; `length` is the number of the epoch's batches."""
        self.turn, self.restored = None, (epoch, given)
        self.start = (epoch, given) if given < length else (epoch + 1, 0)

    def begin(self, length: int, now: float, turn: object) -> None:
        """Begin the next epoch, which has `length` batches, for the iterator of this turn."""
        self.turn, self.restored, self.length = turn, None, length
        self.epoch, self.given = self.start
        self.start = self.epoch + 1, 0
        self._times = 0, 0, now, now, 0.0, 0.0

    def give(self, valid: int, asked: float, now: float, storage: float) -> None:
        """Count a batch of `valid` samples, which was asked for at a time and is given now.

        `storage` is how long, of the time in between, the pipeline waited for the storage.
        """
        batches, samples, begin, _, wait, stored = self._times
        wait += now - asked
        self._times = batches + 1, samples + valid, begin, now, wait, stored + storage
        self.given += 1
        self.valid = valid
