"""Scripts that train with Ray, on a cluster of this machine, as tests/kit/watched.py does it.

    python -m tests.kit.ray_cluster DIRECTORY "SCRIPT ARGUMENTS" ...

A script goes on where the one before it has stopped. Before a worker is killed, Ray has committed
its checkpoints.
"""

import os
import runpy
import shlex
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kit.watched import record


def watched(train: Callable[[Any], None], directory: str, config: Any) -> None:
    """Train in a worker."""
    import ray.train

    here = ray.train.get_context()
    committed = ray.train.get_all_reported_checkpoints  # waits until all are
    record(directory, here.get_world_rank(), here.get_world_size(), committed)
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
        sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for a script
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
