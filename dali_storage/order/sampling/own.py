"""A user's own order: indices for each epoch, from a sequence, a function or a sampler of torch."""

import random
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from threading import Lock
from typing import Any, Self

import numpy as np

from ...contract._types import IntArray

_CHUNK = 1 << 16  # indices as Python integers at once; a list of 10**8 has 3 GB


class OwnOrder:
    """A `SampleStream` of a user's own indices for each epoch and all ranks.

    The last two epochs are kept; others are requested again. An array is not copied, and must not
    be changed. A function is called in the reading threads, one at a time.
    """

    def __init__(self, order: Any, samples: int) -> None:
        """Use an order of indices from 0 to `samples` - 1.

        `order` is a sequence or an array, the same in every epoch; a function from the number of an
        epoch, counted from 0, to the indices of the epoch, the same in every call; or a torch
        sampler, with or without `set_epoch()`. The batches of a batch sampler must have the same
        size, except the last; they are joined and divided again.

        Raises:
            ValueError, TypeError: the order is wrong, or does not repeat an epoch.
        """
        self._samples, self._lock = samples, Lock()
        self._ask, self._fixed = _asked(order)
        with _otherwise_seeded(1):
            self._kept = {0: self._epoch_of(0)}
        self.epoch_size, self.seed, self.changes = self._kept[0][0].size, 0, list[list[Any]]()
        with _otherwise_seeded(2):
            if not self._fixed and self._epoch_of(0)[1] != self._kept[0][1]:
                raise ValueError(
                    "order returned other indices for epoch 0 in a second call: seed by the epoch, "
                    "as in order=lambda epoch: WeightedRandomSampler(w, n, "
                    "generator=torch.Generator().manual_seed(epoch))"
                )

    def entries(self, positions: IntArray) -> IntArray:
        """See `SampleStream`; raises the constructor's errors for later epochs."""
        size = self.epoch_size
        first, last = (positions[[0, -1]] // size).tolist()
        starts = [epoch * size for epoch in range(first, last + 2)]
        cuts = pairwise(np.searchsorted(positions, starts).tolist())
        parts = [
            self._epoch(epoch)[0][positions[start:stop] - epoch * size]
            for epoch, (start, stop) in enumerate(cuts, first)
            if start < stop
        ]
        return np.concatenate(parts).astype(np.int64, copy=False)

    def turns_at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `SampleStream`: epochs."""
        return np.zeros_like(positions), positions // self.epoch_size

    def describe(self, epoch: int) -> str:
        """See `SampleStream`."""
        return f"an own one of {self.epoch_size} indices (CRC-32 {self._epoch(epoch)[1]:#x})"

    def changed(self, changes: Any) -> Self:
        """See `SampleStream`."""
        if changes:
            raise ValueError(f"changes: an own order has no weights to change by {changes!r:.80}")
        return self

    def _epoch(self, epoch: int) -> tuple[IntArray, int]:
        epoch = 0 if self._fixed else epoch
        with self._lock:  # a sampler is at one epoch at a time
            if epoch not in self._kept:
                made = self._epoch_of(epoch)
                if made[0].size != self.epoch_size:
                    raise ValueError(
                        f"order: epoch {epoch} has {made[0].size} indices, but epoch 0 has "
                        f"{self.epoch_size}; give every epoch the same number"
                    )
                self._kept = dict([*self._kept.items()][-1:]) | {epoch: made}
            return self._kept[epoch]

    def _epoch_of(self, epoch: int) -> tuple[IntArray, int]:
        """The indices of an epoch, of any type of integers, and their CRC-32."""
        try:
            found = _array(self._ask(epoch))
        except Exception as error:
            error.add_note(f"while calling order for epoch {epoch}")
            raise
        if not found.size:
            raise ValueError(f"order has no indices in epoch {epoch}")
        if found.ndim != 1 or found.dtype.kind not in "iu":
            what = f"{found.dtype} of shape {found.shape}; for a mask, give np.flatnonzero(mask)"
            raise ValueError(f"order must be a list of integers, not {what}")
        for index in (int(found.min()), int(found.max())):
            if not 0 <= index < self._samples:
                raise ValueError(f"order has the index {index}, but {self._samples} samples exist")
        crc = 0
        for start in range(0, found.size, _CHUNK):
            crc = zlib.crc32(np.ascontiguousarray(found[start : start + _CHUNK], "<i8").data, crc)
        return found, crc


def _asked(order: Any) -> tuple[Callable[[int], Any], bool]:
    """A function that gives the indices of an epoch, and True if all epochs are the same."""
    torch: Any = sys.modules.get("torch.utils.data")  # without it, no sampler is of torch
    sampler, set_epoch = order, getattr(order, "set_epoch", None)
    if torch and isinstance(order, torch.BatchSampler):
        sampler = order.sampler
        set_epoch = getattr(sampler, "set_epoch", set_epoch)
    if (ranks := getattr(sampler, "num_replicas", 1)) != 1:
        of_all = "one for all ranks, with num_replicas=1 and rank=0; the reader splits the indices"
        raise ValueError(f"order is the sampler of one of {ranks} ranks: give {of_all}")
    if isinstance(order, Sequence) or hasattr(order, "__array__"):
        return lambda epoch: order, True
    if hasattr(order, "__iter__") and (set_epoch or (torch and isinstance(order, torch.Sampler))):
        return lambda epoch: (set_epoch and set_epoch(epoch), order)[1], False
    if callable(order):
        return order, False
    raise TypeError(
        "order must be a sequence, an array, a function of the epoch or a sampler of torch, not "
        f"{order!r:.80}, which cannot restart at any epoch"
    )


def _array(given: Any) -> IntArray:
    """All indices of an epoch; batches are joined."""
    try:
        if isinstance(given, range):
            return np.arange(given.start, given.stop, given.step)
        if isinstance(given, Sequence) or hasattr(given, "__array__"):
            return np.asarray(given)
        found = iter(given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"order: {error}") from None
    begin = [*islice(found, 1)]
    found, batched = chain(begin, found), bool(begin and np.ndim(begin[0]))
    chunks = found if batched else iter(lambda: [*islice(found, _CHUNK)], [])
    parts = [np.asarray(part) for part in chunks]
    if batched and {*map(len, parts[:-1]), max(map(len, parts))} != {len(parts[0])}:
        raise ValueError("order: the batches of a sampler must have one size, except the last")
    return np.concatenate(parts or [np.empty(0)])


@contextmanager
def _otherwise_seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and restore their states afterwards."""
    generators: list[Any] = [(random.getstate, random.seed, random.setstate)]
    generators.append((np.random.get_state, np.random.seed, np.random.set_state))
    if torch := getattr(sys.modules.get("torch"), "default_generator", None):
        generators.append((torch.get_state, torch.manual_seed, torch.set_state))
    kept = [(put_back, get()) for get, _, put_back in generators]
    try:
        for _, reseed, _ in generators:
            reseed(seed)
        yield
    finally:
        for put_back, state in kept:
            put_back(state)
