"""Training scripts whose steps are written down; one process of them is killed.

    torchrun ... -m tests.kit.watched DIRECTORY SCRIPT ARGUMENTS

runs a script in a directory. The labels of each step are in labels-WORLD-ATTEMPT-RANK.jsonl there.
Process 1 of 2 is killed in step `KILLED` of the first attempt. tests/kit/ray_cluster.py does this
with Ray.
"""

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn import functional

from tests.kit.process import wait_until

KILLED = 10


def record(
    directory: str, rank: int, world: int, before_kill: Callable[[], object] | None = None
) -> None:
    """Write down what this process trains with: the labels that `cross_entropy` is given."""
    logs = [Path(directory, f"labels-{world}-{attempt}-{rank}.jsonl") for attempt in range(3)]
    log = next(each for each in logs if not each.exists())
    other, cross_entropy, steps = Path(directory, "labels-2-0-0.jsonl"), functional.cross_entropy, 0

    def recorded(output: Any, labels: Any) -> Any:
        nonlocal steps
        steps += 1
        with log.open("a") as lines:
            print(json.dumps(labels.tolist()), file=lines)
        if (rank, world, log, steps) == (1, 2, logs[0], KILLED):
            if before_kill:
                before_kill()
            wait_until(lambda: other.read_text().count("\n") == KILLED)  # it has come as far
            os.kill(os.getpid(), signal.SIGKILL)
        return cross_entropy(output, labels)

    functional.cross_entropy = recorded


if __name__ == "__main__":
    directory, *sys.argv = sys.argv[1:]
    os.chdir(directory)
    record(directory, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for a script
    runpy.run_path(sys.argv[0], run_name="__main__")
