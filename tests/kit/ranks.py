"""What a process of torchrun does with loaders; test_ranks.py starts two of them.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.kit.ranks DIR

Every process writes what it has seen to DIR/RANK.json.
"""

import json
import os
import sys
import warnings
from dataclasses import astuple
from datetime import timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from dali_storage import shard
from dali_storage.loaders import Loader, Shard
from tests.kit.launch import LAUNCHER
from tests.kit.loading import SHUFFLES, Make, numbers

SAMPLES, BATCH = 35, 4  # shards of 17 and 18 samples, 5 batches; 4 of them are full everywhere
ORDERS = ("list", "epoch")
POLICIES = ("partial", "drop", "pad")


def make(order: str = "list") -> Make:
    return Make(samples=SAMPLES, batch_size=BATCH, order=SHUFFLES[order])


def refusal(loader: Loader) -> str:
    try:
        next(iter(loader))
    except RuntimeError as error:
        return str(error)
    return "none"


def without_launcher(loader: Loader) -> int:
    """Use a loader where the launcher has said nothing, as in Lightning's first process."""
    hidden = {name: os.environ.pop(name) for name in LAUNCHER}
    try:
        return len(loader)
    finally:
        os.environ |= hidden


def epochs(loader: Loader, together: bool) -> list[list[Any]]:
    """Two epochs; all processes meet at every batch, which needs equally many batches in each."""
    seen = []
    for _ in range(2):
        seen.append([(numbers(batch), loader.valid) for batch in meeting(loader, together)])
        assert len(seen[-1]) == len(loader) or not together
    return seen


def meeting(loader: Loader, together: bool) -> Any:
    for batch in loader:
        if together:
            distributed.all_reduce(torch.ones(1))
        yield batch


def restored(state: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """What a new loader gives that goes on from a state, and the warnings."""
    with Loader(make("epoch"), to="torch") as loader, warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loader.load_state_dict(json.loads(json.dumps(state)))
        rest = [numbers(batch) for batch in chain(loader, loader)]
    return rest, [str(each.message) for each in seen]


def torchrun() -> dict[str, Any]:
    early, late = Loader(make(), to="torch"), Loader(make(), to="torch")
    seen: dict[str, Any] = {"alone": without_launcher(early)}
    seen["before"] = astuple(Shard.here())
    distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    seen["shard"] = astuple(Shard.here())
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    for name in ("data", "tensor"):
        seen[name] = [shard(mesh[name]), shard(mesh.get_group(name))]
    seen["early"] = refusal(early)
    seen["late"] = [numbers(batch)[0] for batch in late]
    world = distributed.get_world_size()
    for order in ORDERS:
        for policy in POLICIES:
            loader = Loader(make(order), to="torch", last_batch=policy)  # type: ignore[arg-type]
            seen[f"{order} {policy}"] = epochs(loader, together=policy != "partial")
            loader.close()
    os.environ["WORLD_SIZE"] = str(world + 1)
    seen["disagree"] = refusal(Loader(make(), to="torch"))
    os.environ["WORLD_SIZE"] = str(world)
    with Loader(make("epoch"), to="torch") as loader:
        epoch = iter(loader)
        seen["taken"] = [numbers(batch) for batch in islice(epoch, 2)]
        state = loader.state_dict()
        seen["rest"] = [numbers(batch) for batch in chain(epoch, loader)]
    seen["restored"], seen["warnings"] = restored(state)
    states: list[Any] = [None] * world
    distributed.all_gather_object(states, state)
    seen["of rank 0"], seen["warnings of rank 0"] = restored(states[0])
    early.close()
    late.close()
    distributed.destroy_process_group()
    return seen


if __name__ == "__main__":
    result = torchrun()
    Path(sys.argv[1], f"{result['shard'][0]}.json").write_text(json.dumps(result))
