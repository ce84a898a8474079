"""As much of `ray.train` as examples/ray_train.py uses, without a cluster; run by test_examples.py.

    python -m tests.kit.ray_on_one_process examples/ray_train.py ARGUMENTS

The workers run one after the other, in this process: two of them, until the first reports the
second checkpoint and fails; then three, from the first checkpoint. Nothing of torch.distributed.
"""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

REPORTED = Path("reported")


class WorkerError(Exception):
    """What ends a worker."""


class Worker:
    """The place of the function that is trained with."""

    rank = world = reports = 0
    fail_at: int | None = None
    checkpoint: Any = None

    def get_context(self) -> Any:
        return SimpleNamespace(
            get_world_rank=lambda: self.rank,
            get_world_size=lambda: self.world,
            get_local_rank=lambda: self.rank,
        )

    def get_checkpoint(self) -> Any:
        return self.checkpoint

    def report(self, metrics: dict[str, Any], checkpoint: Any) -> None:
        self.reports += 1
        if self.reports == self.fail_at:
            raise WorkerError
        shutil.copytree(checkpoint, REPORTED / str(metrics["step"]), dirs_exist_ok=True)
        print(f"rank {self.rank} of {self.world} reports {metrics}")


class Trainer:
    def __init__(
        self, train: Callable[[Any], None], *, train_loop_config: Any = None, **_: Any
    ) -> None:
        self.train, self.config = train, train_loop_config or {}

    def fit(self) -> None:
        self.run(2, fail_at=2)
        worker.checkpoint = SimpleNamespace(as_directory=lambda: nullcontext(REPORTED / "4"))
        self.run(3, fail_at=None)

    def run(self, world: int, fail_at: int | None) -> None:
        for rank in range(world):
            worker.rank, worker.world, worker.reports, worker.fail_at = rank, world, 0, fail_at
            try:
                self.train(self.config)
            except WorkerError:
                print(f"rank {rank} fails")


worker = Worker()


def main() -> None:
    ray, train, torch = (ModuleType(name) for name in ("ray", "ray.train", "ray.train.torch"))
    vars(ray).update(train=train)
    vars(torch).update(TorchTrainer=Trainer, prepare_model=lambda model: model)
    vars(train).update(
        {name: getattr(worker, name) for name in ("get_context", "get_checkpoint", "report")}
        | dict.fromkeys(("ScalingConfig", "RunConfig", "FailureConfig"), SimpleNamespace)
        | {"Checkpoint": SimpleNamespace(from_directory=str)}
    )
    sys.modules |= {"ray": ray, "ray.train": train, "ray.train.torch": torch}
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
