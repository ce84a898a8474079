"""A training that is killed and goes on, as a user's script; test_elastic.py runs it by launch.py.

    torchrun ... -m tests.kit.elastic DIR [CHECKPOINT]

Every process writes what it has seen to DIR/log-WORLD-ATTEMPT-RANK.jsonl. With two processes,
iterators of DALI are trained with beside the loaders, and the second process kills itself once.
CHECKPOINT is the one to begin with; otherwise, it is the newest complete one.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator
from torch import distributed
from torch.distributed import checkpoint

import dali_storage
from dali_storage.loaders import Loader
from tests.kit.loading import Make, numbers

SAMPLES, BATCH, EPOCHS = 105, 4, 3  # shards of 52 and 53 samples: 13 batches, and 14 everywhere
EVERY = 6  # steps from one checkpoint to the next
KILLED = 22  # in the second epoch
ORDERS: dict[str, dict[str, Any]] = {
    "sticky": {"random_shuffle": True, "initial_fill": 9, "seed": 3, "stick_to_shard": True},
    "rotating": {"random_shuffle": True, "initial_fill": 9, "seed": 3},
    "epoch": {"shuffle_after_epoch": True},
}


def newest(directory: Path) -> Path | None:
    """The last complete checkpoint: `.metadata` is written when all else has been."""
    complete = [path.parent for path in directory.glob("step-*/.metadata")]
    return max(complete, key=lambda path: int(path.name.removeprefix("step-")), default=None)


class Training:
    def __init__(self, directory: Path, iterators: bool) -> None:
        self.directory = directory
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        self.log = (directory / f"log-{self.world}-{attempt}-{self.rank}.jsonl").open("w")
        self.kill = (self.rank, self.world, attempt) == (1, 2, "0")
        self.makes = {
            name: Make(samples=SAMPLES, batch_size=BATCH, order=order)
            for name, order in ORDERS.items()
        }
        self.loaders = {name: Loader(make, last_batch="pad") for name, make in self.makes.items()}
        self.iterators: dict[str, Any] = dict.fromkeys(ORDERS if iterators else ())
        self.state: dict[str, Any] = {"samples": torch.zeros(1), "step": 0, "epoch": 0, "world": 0}

    def begin(self, where: Path | None) -> None:
        """Restore a checkpoint: each process its own part or, with another world, anyone's."""
        iterated = dict.fromkeys(self.iterators)
        if where is not None:
            checkpoint.load(self.state, checkpoint_id=where)
            rank = self.rank % self.state["world"]
            own = {f"loader {name}/{rank}": loader for name, loader in self.loaders.items()}
            bytes_of = {f"iterator {name}/{rank}": b"" for name in self.iterators}
            checkpoint.load(own, checkpoint_id=where)
            checkpoint.load(bytes_of, checkpoint_id=where)
            iterated = dict(zip(self.iterators, bytes_of.values(), strict=True))
        for name, state in iterated.items():
            self.iterators[name] = DALIGenericIterator(
                [self.makes[name](checkpoint=state, **dali_storage.shard())],
                ["label", "random"],
                reader_name="Reader",
                last_batch_policy=LastBatchPolicy.PARTIAL,
            )

    def save(self) -> None:
        own = {f"loader {name}/{self.rank}": each for name, each in self.loaders.items()} | {
            f"iterator {name}/{self.rank}": each.checkpoints()[0]
            for name, each in self.iterators.items()
        }
        where = self.directory / f"step-{self.state['step']}"
        checkpoint.save(self.state | {"world": self.world} | own, checkpoint_id=where)

    def run(self) -> None:
        state = self.state
        while state["epoch"] < EPOCHS:
            for labels in self.batches():
                seen = torch.tensor([float(sum(map(len, labels.values())))])
                distributed.all_reduce(seen)  # all processes meet
                state["samples"] += seen
                line = [state["step"], state["epoch"], int(state["samples"]), labels]
                print(json.dumps(line), file=self.log, flush=True)
                state["step"] += 1
                if state["step"] % EVERY == 0:
                    self.save()
                if self.kill and state["step"] == KILLED:
                    os.kill(os.getpid(), signal.SIGKILL)
            for iterator in self.iterators.values():
                iterator.reset()
            state["epoch"] += 1

    def batches(self) -> Iterator[dict[str, list[int]]]:
        """The samples of a step by the names of what delivers them, without padding."""
        both = [*self.iterators.values(), *self.loaders.values()]
        for step in zip(*both, strict=True):
            iterated = step[: len(self.iterators)]
            loaded = step[len(self.iterators) :]
            labels = {
                f"iterator {name}": batch[0]["label"].flatten().tolist()
                for name, batch in zip(self.iterators, iterated, strict=True)
            }
            for (name, loader), batch in zip(self.loaders.items(), loaded, strict=True):
                labels[f"loader {name}"] = list(islice(numbers(batch)[0], loader.valid))
            yield labels


def main(directory: Path, where: Path | None) -> None:
    warnings.simplefilter("ignore")
    distributed.init_process_group("gloo")
    training = Training(directory, iterators=distributed.get_world_size() == 2)
    with ExitStack() as stack:
        for loader in training.loaders.values():
            stack.enter_context(loader)
        training.begin(where or newest(directory))
        training.run()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)
