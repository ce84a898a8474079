"""The order of our readers for torch's `DataLoader`, without DALI and without a backend.

This imports torch; `dali_storage` itself does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils import data

from ..contract.options import require_integer
from ..order import OrderOptions
from ..order.resuming.resume import StreamRest
from ..order.sampling.datasets import DataSet, mixture_of, stream_of
from ..order.sampling.dealing import StreamOrder
from ..ranks import Shard

__all__ = ["DataSet", "Sampler"]


class Sampler(data.Sampler[int]):  # type: ignore[misc]
    """The indices of one rank, in the stream of our readers.

    Each `iter()` gives an epoch, or its rest after a saved state; after complete iteration, the
    next epoch. An epoch left early begins again. The `DataLoader` must have the same batch size:
    all ranks together get consecutive batches of the stream.

    Attributes:
        rank: this rank.
        num_replicas: the number of ranks.
    """

    def __init__(
        self,
        samples: int | DataSet | Mapping[str, int | DataSet],
        *,
        batch_size: int,
        weights: Mapping[str, Any] | None = None,
        schedule: Sequence[tuple[int, Mapping[str, Any]]] | None = None,
        epoch_size: int | str | None = None,
        seed: int = 0,
        shuffle: bool = True,
        last_batch: str = "partial",
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        """Use the stream of a data set, or of a mixture.

        Args:
            samples: the number of samples; or a `DataSet` of the number of samples, their labels
                and the weights of classes or samples, as for `readers.file`. For a mixture, a
                mapping of the names of its sources to such values; indices continue from source to
                source, as in torch's `ConcatDataset`.
            batch_size: batch size of each rank.
            weights: the weights of a mixture's sources, as for `readers.mix`.
            schedule: changes of the weights, as for `readers.mix`.
            epoch_size: indices of an epoch, of all ranks; or "largest" or "smallest".
            seed: seed of all orders; the same on all ranks.
            shuffle: False: a pass of a source keeps the order of its samples.
            last_batch: treatment of the end of an epoch with too few samples for all ranks.
                "partial": the ranks share the rest, and some may get no index; "drop": the rest is
                dropped; "pad": an index is repeated.
            rank: this rank; by default the rank of `loaders.Shard.here()`.
            world: the number of ranks; required with `rank`.

        Raises:
            ValueError, TypeError: an argument is wrong.
        """
        if (rank is None) is not (world is None):
            raise TypeError("rank and world must be given together")
        if last_batch not in ("partial", "drop", "pad"):
            raise ValueError(f"last_batch must be 'partial', 'drop' or 'pad', not {last_batch!r}")
        shard = Shard.here() if rank is None or world is None else Shard(rank, world)
        self.rank, self.num_replicas, self._last = shard.rank, shard.world, last_batch
        settings: dict[str, Any] = {"seed": seed, "epoch_size": epoch_size, "listed": not shuffle}
        if isinstance(samples, Mapping):
            parts = {name: _data_set(each) for name, each in samples.items()}
            self._samples = sum(part.size for part in parts.values())
            self._stream = mixture_of(parts, weights, schedule, **settings)
        elif weights is not None or schedule is not None:
            raise ValueError("weights and schedule are for mixtures: give the DataSet weights")
        else:
            self._samples = _data_set(samples).size
            self._stream = stream_of(_data_set(samples), **settings)
        self._options = OrderOptions(
            num_shards=shard.world, shard_id=shard.rank, pad_last_batch=True
        )
        StreamOrder(self._stream, batch_size, self._options)  # refuses wrong numbers
        self._batch_size, self._wide = batch_size, batch_size * shard.world
        if last_batch == "drop" and self._stream.epoch_size < self._wide:
            raise ValueError(
                f"last_batch='drop' leaves none of {self._stream.epoch_size} samples: use smaller "
                "batches"
            )
        self._taken, self._rest = [0], self._left(0, 0)

    def __len__(self) -> int:
        """The number of indices in the next `iter()`."""
        rest = self._next()
        if self._last == "partial":
            return int(rest.shares()[self.rank])
        return self._batches(rest) * self._batch_size

    def __iter__(self) -> Iterator[int]:
        self._taken, self._rest = [0], self._next()
        return self._indices(self._rest, self._taken, len(self))

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch, or its rest after a resumed state, the next one."""
        require_integer("Sampler", "epoch", epoch, range(2**31))
        if epoch != self._next().epoch:
            self._taken, self._rest = [0], self._left(epoch, 0)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position, for any number of ranks and any batch size, in types for JSON.

        Args:
            batches: number of finished batches of the last `iter()`. None: all batches with
                requested indices; with workers, a `DataLoader` requests more than it has delivered.

        Returns:
            Entries as in `readers.state()`: `epoch` and `given` (the indices of the epoch given to
            all ranks); `version`, `samples`, `stream` and `changes` identify the stream.
        """
        rest, done = self._rest, self._taken[0] if batches is None else batches
        require_integer("Sampler", "batches", done, range(self._batches(rest) + 1))
        position = {"epoch": rest.epoch, "given": rest.given + done * self._wide}
        if done == self._batches(rest):
            position = {"epoch": rest.epoch + 1, "given": 0}
        return self._identity() | {"changes": self._stream.changes} | position

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of a `Sampler` or `readers.state()`, of any ranks and batch size.

        Raises:
            ValueError: the state is damaged, or of another stream.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a state is a mapping, not {state!r:.80}")
        for name, value in self._identity().items():
            if (saved := state.get(name)) != value:
                here = f"{name} {saved!r:.90}, but this sampler has {value!r:.90}"
                raise ValueError(f"the state was made with {here}: give the same arguments")
        epoch, given = state.get("epoch", -1), state.get("given", -1)
        require_integer("state", "epoch", epoch, range(2**31))
        require_integer("state", "given", given, range(self._stream.epoch_size))
        self._stream = self._stream.changed(state.get("changes"))
        self._taken, self._rest = [0], self._left(epoch, given)

    def _identity(self) -> dict[str, Any]:
        return {"version": 1, "samples": self._samples, "stream": self._stream.describe(0)}

    def _left(self, epoch: int, given: int) -> StreamRest:
        size, world = self._stream.epoch_size, self.num_replicas
        began, batch_size = self._options, self._batch_size
        return StreamRest(
            size=size, began=began, epoch=epoch, given=given, world=world, batch_size=batch_size
        )

    def _batches(self, rest: StreamRest) -> int:
        left = rest.size - rest.given
        return left // self._wide if self._last == "drop" else -(-left // self._wide)

    def _next(self) -> StreamRest:
        done = self._taken[0] >= self._batches(self._rest)
        return self._left(self._rest.epoch + 1, 0) if done else self._rest

    def _indices(self, rest: StreamRest, taken: list[int], count: int) -> Iterator[int]:
        same, size = rest.same, self._batch_size
        order = StreamOrder(self._stream, size, self._options, rest if same is None else None)
        start = rest.start if same is None else same
        for number in range(self._batches(rest)):
            batch = order.batch(start + number)[: count - number * size].tolist()
            yield from batch[:-1]
            taken[0] = number + 1  # before the last index, after which nobody may call again
            yield from batch[-1:]


def _data_set(samples: int | DataSet) -> DataSet:
    return samples if isinstance(samples, DataSet) else DataSet(samples)
