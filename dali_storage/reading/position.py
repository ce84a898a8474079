"""Where a source is in its endless stream of batches, and how that is saved. No DALI here."""

import functools
import operator
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..contract.catalog import Catalog
from ..contract.reader import Reader
from ..order import OrderOptions
from ..order.resume import Rest
from ..order.shards import rounds
from ..order.state import began, identity, make_state, read_checkpoint, read_state, require_same
from .prefetch import next_index

_HELD = 2  # batches that an iterator of DALI may have taken for itself


class Position:
    """A place in the batches of a reader. Knows the reader by `open()` only.

    Attributes:
        successor: the index of the batch after a batch, by default the next one. What is left out
            is not read. May be set at any time; must be a pure function.
        resumed: whether `resume()` has moved it.
        rest: what is left of the epoch that it was moved into, if others began it; else None.
    """

    def __init__(self, order: OrderOptions, resume: Mapping[str, Any] | None) -> None:
        """At the first batch. `configure()` calls `resume()` with `resume`, if it is not None."""
        self.successor: Callable[[int], int] = next_index
        self.resumed = False
        self.rest: Rest | None = None
        self._order = order
        self._resume = resume
        self._batch_size = 0  # until configure()
        self._shared_seed = True
        # Of the batches that are on their way to the user, and of the next one. A deque, because
        # `advance()` must be C code.
        self._positions = deque([0])

    def open(self) -> tuple[Catalog, Reader]:
        """The samples and the open backend."""
        raise NotImplementedError

    @property
    def configured(self) -> bool:
        """Whether `configure()` has succeeded."""
        return self._batch_size > 0 and (self._resume is None or self.resumed)

    def configure(
        self, *, batch_size: int, seed: int | None, checkpointing: bool, shared_seed: bool = True
    ) -> None:
        """Take what the pipeline decides about the order; before `start()`, states and checkpoints.

        A `seed` replaces the reader's own. `shared_seed` says that it is the same on all ranks.

        Raises:
            TypeError, ValueError: see `resume()`.
        """
        seed = self._order.seed if seed is None else seed
        self._order = replace(self._order, seed=seed, checkpointing=checkpointing)
        self._batch_size, self._shared_seed = batch_size, shared_seed
        if self._resume is not None:
            self.resume(self._resume)

    @property
    def position(self) -> int:
        """The index of the next batch, counted from 0 across epochs; `seek()` changes it."""
        return self._positions[-1]

    def seek(self, position: int) -> None:
        """Make `position` the next batch that DALI takes, whatever was to follow.

        Batches that DALI has taken and not yet delivered still come first. What was read ahead is
        dropped, unless the new position needs it.

        Raises:
            ValueError: the position is negative.
        """
        if operator.index(position) < 0:
            raise ValueError(f"{self}: position must be at least 0, not {position}")
        self._positions[-1] = operator.index(position)

    def advance(self, pending: int) -> Callable[[], object]:
        """What moves on to the successor when it is called: C code, which no Ctrl-C interrupts.

        Only the positions of the last `pending` batches, and of those that an iterator may have
        taken for itself, stay known, for `state()` and `checkpoint()`.
        """
        while len(self._positions) > pending + 1 + _HELD:
            self._positions.popleft()
        return partial(self._positions.append, self.successor(self.position))

    def delivered(self, pending: int) -> int:
        """The position of the next batch for the user, who has not got the last `pending` ones."""
        return self._positions[-1 - pending]

    def checkpoint(self, pending: int) -> dict[str, Any]:
        """For a checkpoint, when `pending` batches were taken and not yet delivered to the user."""
        position = self.delivered(pending)
        # At its end, too: there an iterator still has the numbers of the rest.
        resumed = self.rest is not None and position <= self.rest.stop
        return {
            **self._identity,
            "batch_size": self._batch_size,
            "batches": position,
            "resumed": dict(self._resume or {}) if resumed else None,
        }

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Move to the position of a checkpoint.

        Raises:
            TypeError, ValueError: it is damaged, or of something else; names what differs.
        """
        if self._resume is not None:
            either = "give the pipeline checkpoint=, or the reader resume="
            raise ValueError(f"{self}: it cannot begin at two places: {either}")
        saved = read_checkpoint(f"{self}: this is no checkpoint of such a reader", checkpoint)
        here = self._identity | {"batch_size": self._batch_size}
        require_same(f"{self}: the checkpoint", saved, here)
        if saved["resumed"] is not None:
            self.resume(saved["resumed"])
        self.seek(saved["batches"])

    def state(self, pending: int) -> dict[str, Any]:
        """For `resume()`; the same on all ranks that have been given equally many batches.

        Its seed is None if every rank may have another one.

        Raises:
            ValueError: the reader does not pad its last batches.
        """
        self._require_padding("a state")
        size, batch_size = self.open()[0].delivered, self._batch_size
        position, world, rest = self.delivered(pending), self._order.num_shards, self.rest
        if rest is not None and rest.start <= position < rest.stop:
            place = {"epoch": rest.epoch, "given": rest.given_at(position)}
            world = rest.began.num_shards
        else:
            epoch, batches = divmod(position, rounds(size, world, batch_size))
            place = {"epoch": epoch, "given": batches * batch_size * world}
        shared = self._shared_seed or world == 1 or not self._order.random_shuffle
        seed = self._identity["seed"] if shared else None
        return make_state(self._identity, **place, num_shards=world, seed=seed)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was called, with any number of ranks and batch size.

        After `configure()` and before `start()`. Each sample of the epoch that is left is given
        once, by one of the ranks; then whole epochs follow. `rest` says which batches these are.

        Raises:
            TypeError, ValueError: it is damaged, or of another data set or order; names it.
        """
        saved = read_state(f"{self}: resume is no state of readers.state()", state)
        self._require_padding("resume")
        rest = Rest(
            size=saved["samples"],
            began=began(saved),
            epoch=saved["epoch"],
            given=saved["given"],
            world=self._order.num_shards,
            batch_size=self._batch_size,
        )
        same = rest.same
        here = self._identity | {"num_shards": saved["num_shards"]}
        here |= {"seed": None} if saved["seed"] is None else {}
        require_same(f"{self}: the state to resume from", saved, here)
        if saved["seed"] is None and same is None:
            raise ValueError(
                f"{self}: when the state was saved, every rank may have had another seed, that of "
                f"its pipeline: go on with {rest.began.num_shards} shards and the same batch "
                "size; for the next time, give the reader seed="
            )
        self.resumed, self._resume = True, saved
        self.rest = rest if same is None else None
        self.seek(rest.start if same is None else same)

    @functools.cached_property
    def _identity(self) -> dict[str, Any]:
        """After `configure()`."""
        catalog, _ = self.open()
        return identity(catalog.delivered, catalog.checksum(), self._order)

    def _require_padding(self, what: str) -> None:
        if not self._order.pad_last_batch:
            otherwise = "otherwise an epoch begins within a batch"
            raise ValueError(f"{self}: {what} needs pad_last_batch=True; {otherwise}")
