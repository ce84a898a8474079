"""The position of a Loader in its epochs: pure arithmetic, without a pipeline."""

from dataclasses import dataclass

from .stats import LoaderStats


@dataclass(slots=True)
class Progress:
    """The current or last epoch, and the next one.

    An epoch begins with the request for its first batch, and is complete after its last batch. A
    method that moves on makes no call after its first assignment: wherever Python could raise
    KeyboardInterrupt, the method has done either everything or nothing.

    Attributes:
        epoch: the latest epoch; -1 before the first one.
        given: delivered batches of the epoch, including batches before a saved state.
        length: batches of the epoch.
        start: the next epoch, and the number of its delivered batches.
        fixed: the epoch that every iterator begins instead, if an EpochSampler set one.
        restored: the position of a loaded state, until the next request for a batch.
        turn: identifies the iterator of `epoch`; None if `iter()` was called since.
        valid: samples of the latest batch without padding.
    """

    epoch: int = -1
    given: int = 0
    length: int = 0
    start: tuple[int, int] = 0, 0
    fixed: int | None = None
    restored: tuple[int, int] | None = None
    turn: object = None
    valid: int = 0
    _times: tuple[int, int, float, float, float, float] = 0, 0, 0.0, 0.0, 0.0, 0.0

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the next batch, and the number of batches before."""
        under_way = self.turn is not None and self.given < self.length
        return (self.epoch, self.given) if under_way else self.coming

    @property
    def saved(self) -> tuple[int, int]:
        """The place for a state; after a whole epoch, it is in the following one, fixed or not."""
        complete = self.turn is not None and self.given >= self.length
        return self.start if complete else self.place

    @property
    def coming(self) -> tuple[int, int]:
        """The epoch that the next iterator begins, and the number of its delivered batches."""
        fixed = self.fixed
        return self.start if fixed is None or fixed == self.start[0] else (fixed, 0)

    @property
    def stats(self) -> LoaderStats:
        """The statistics of the latest epoch."""
        batches, samples, begin, end, wait, storage = self._times
        return LoaderStats(batches, samples, end - begin, wait, storage)

    def set_epoch(self, epoch: int, *, fix: bool = False) -> None:
        """Make an epoch the next one, or with `fix` each one; in that of a state, go on from it."""
        if type(epoch) is not int or epoch < 0:
            raise ValueError(f"epoch must be an integer from 0 on, not {epoch!r}")
        restored = self.restored
        self.start = restored if restored and restored[0] == epoch else (epoch, 0)
        self.fixed = epoch if fix else None

    def restore(self, epoch: int, given: int, length: int) -> None:
        """Make this position the next one; `length` is the number of the epoch's batches."""
        self.turn, self.restored, self.fixed = None, (epoch, given), None
        self.start = (epoch, given) if given < length else (epoch + 1, 0)

    def begin(self, length: int, now: float, turn: object) -> None:
        """Begin the next epoch, of `length` batches, for the iterator of this turn."""
        epoch, given = self.coming
        self.turn, self.restored, self.length = turn, None, length
        self.epoch, self.given = epoch, given
        self.start = self.epoch + 1, 0
        self._times = 0, 0, now, now, 0.0, 0.0

    def give(self, valid: int, asked: float, now: float, storage: float) -> None:
        """Count a batch of `valid` samples, requested at time `asked` and delivered at `now`.

        The pipeline waited for the storage for `storage` seconds in between.
        """
        batches, samples, begin, _, wait, stored = self._times
        wait += now - asked
        self._times = batches + 1, samples + valid, begin, now, wait, stored + storage
        self.given += 1
        self.valid = valid
