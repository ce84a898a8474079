"""How much memory the legs take in one epoch, beside the list of samples; each in a new process.

python -m benchmarks.memory DIR --legs dali-webdataset,webdataset-direct-samples --seed 1
"""

import argparse
import gc
import multiprocessing
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import maps
from .container_legs import CONTAINER_LEGS, open_shards
from .legs import LEGS
from .measure import Result
from .pipelines import build, use_images
from .workload import BadInputError, Settings, prepare

_LEGS = {leg.name: leg for leg in (*LEGS, *CONTAINER_LEGS)}


@dataclass(frozen=True, slots=True)
class Growth:
    """What an epoch adds to a pipeline that has found its samples: the most at any batch.

    Attributes:
        anonymous: bytes that the process has allocated (RssAnon).
        mapped: bytes of files, and of memory shared with others (RssFile, RssShmem).
        first_seconds: how long the first batch took.
    """

    anonymous: int
    mapped: int
    first_seconds: float


def measure(name: str, directory: str, settings: Settings) -> Growth | str:
    """Read an epoch by the leg `name`, or say why it cannot run. Use a new process."""
    leg, workload = _LEGS[name], prepare(directory, settings)
    if leg in CONTAINER_LEGS:
        workload = open_shards(workload, directory)
    result = Result(name, skipped=leg.unsupported_reason(workload))
    with maps.with_map(workload, {name: result}, [leg]) as workload:
        if not result.runs:
            return str(result.skipped or result.failed)
        workload = leg.ordered(workload)
        pipe = build(leg.read, workload, use_images)
        gc.collect()
        before, start = resident(), time.perf_counter()
        pipe.run()
        first_seconds, most = time.perf_counter() - start, resident()
        for _ in range(1, len(workload.order)):
            pipe.run()
            anonymous, mapped = resident()
            most = max(most[0], anonymous), max(most[1], mapped)
    return Growth(most[0] - before[0], most[1] - before[1], first_seconds)


def resident() -> tuple[int, int]:
    """Bytes of anonymous memory, and of files and shared memory, of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kinds = {name: 1024 * int(kib) for name, kib in re.findall(r"Rss(\w+):\s+(\d+) kB", status)}
    return kinds["Anon"], kinds["File"] + kinds["Shmem"]


def main() -> int:
    """Measure the legs of the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="of a data set")
    parser.add_argument("--legs", default=",".join(_LEGS), metavar="LEG,LEG", help="default: all")
    parser.add_argument("--seed", type=int, help="shuffle with this seed (default: list order)")
    parser.add_argument("--threads", type=int, default=2, help="of DALI (default: %(default)s)")
    given = parser.parse_args()
    names = given.legs.split(",")
    if unknown := [name for name in names if name not in _LEGS]:
        parser.error(f"unknown legs {', '.join(unknown)}; known are {', '.join(_LEGS)}")
    settings = Settings(seed=given.seed, threads=given.threads)
    context = multiprocessing.get_context("spawn")
    print(f"{'leg':28} {'anonymous MiB':>13} {'mapped MiB':>10} {'first batch s':>13}")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as processes:
        for name in names:
            try:
                found = processes.submit(measure, name, given.directory, settings).result()
            except BadInputError as error:
                parser.error(str(error))
            if isinstance(found, str):
                print(f"{name:28} not run: {found}")
                continue
            sizes = f"{found.anonymous / 2**20:13.0f} {found.mapped / 2**20:10.0f}"
            print(f"{name:28} {sizes} {found.first_seconds:13.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
