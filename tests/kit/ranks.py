"""What a process of torchrun knows of its place; tests/distributed/test_torchrun.py starts two.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.kit.ranks DIR

Every process writes what it has seen to DIR/RANK.json.
"""

import json
import sys
from dataclasses import astuple
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from dali_storage import ranks, shard
from dali_storage.loaders import Loader, Shard
from tests.kit.loading import Make, labels

SAMPLES = 35


def disagreement(state: dict[str, Any]) -> str:
    try:
        ranks.check(state)
    except ValueError as error:
        return str(error)
    return ""


def torchrun() -> dict[str, Any]:
    with Loader(Make(samples=SAMPLES), to="numpy") as loader:
        seen: dict[str, Any] = {"before": astuple(Shard.here())}
        distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
        seen["shard"] = astuple(Shard.here())
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
        for name in ("data", "tensor"):
            seen[name] = [shard(mesh[name]), shard(mesh.get_group(name))]
        seen["labels"] = [*chain(*labels(loader))]
        ranks.check({"given": 8, "changes": []})
        seen["differs"] = disagreement({"given": 8, "changes": [[4, [Shard.here().rank, 1]]]})
        distributed.destroy_process_group()
    return seen


if __name__ == "__main__":
    result = torchrun()
    Path(sys.argv[1], f"{result['shard'][0]}.json").write_text(json.dumps(result))
