"""Scripts that train with Ray, on a cluster of this machine; tests/distributed/test_ray.py runs it.

    python -m tests.kit.ray_cluster DIRECTORY "SCRIPT ARGUMENTS" ...

A script goes on where the one before it has stopped. Worker 1 of 2 is killed in step `KILLED`, once
Ray has committed the checkpoints before it. The labels of each step are in
DIRECTORY/labels-WORKERS-ATTEMPT-RANK.jsonl.
"""

import json
import os
import runpy
import shlex
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

KILLED = 10


def watched(train: Callable[[Any], None], directory: str, config: Any) -> None:
    """Train in a worker, and write down what it is given."""
    import ray.train
    from torch.nn import functional

    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    logs = [Path(directory, f"labels-{world}-{attempt}-{rank}.jsonl") for attempt in range(3)]
    log = next(each for each in logs if not each.exists())
    cross_entropy, steps = functional.cross_entropy, 0

    def recorded(output: Any, labels: Any) -> Any:
        nonlocal steps
        steps += 1
        with log.open("a") as lines:
            print(json.dumps(labels.tolist()), file=lines)
        if (rank, world, log, steps) == (1, 2, logs[0], KILLED):
            ray.train.get_all_reported_checkpoints()  # waits until all are committed
            while Path(directory, "labels-2-0-0.jsonl").read_text().count("\n") < KILLED:
                time.sleep(0.01)  # the other one has not come so far
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, labels)

    functional.cross_entropy = recorded
    train(config)


def main(directory: str, *commands: str) -> None:
    import ray.train.torch

    real = ray.train.torch.TorchTrainer

    def trainer(train: Callable[[Any], None], *, run_config: Any = None, **options: Any) -> Any:
        run_config = run_config or ray.train.RunConfig()
        run_config.name, run_config.storage_path = "run", directory
        return real(partial(watched, train, directory), run_config=run_config, **options)

    ray.train.torch.TorchTrainer = trainer
    limits = {"num_cpus": 3, "object_store_memory": 100 << 20, "include_dashboard": False}
    # Not in the directory: the paths of its sockets would be too long.
    ray.init(_temp_dir=os.environ["TMPDIR"], **limits)
    for command in commands:
        sys.argv = shlex.split(command)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
