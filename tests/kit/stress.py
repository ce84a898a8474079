"""Runs `make test` again and again beside a heavy load: `make test-stress`, or

    python -m tests.kit.stress --runs 5

Four loops keep the processors busy and a writer keeps the disk busy. Each run has another order of
files and tests, and another PYTHONHASHSEED; `--seed` repeats them.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from tests.kit.paths import ROOT

LOOPS = 4
HOURS = 2  # after which the load ends in any case
_WRITE = "while dd if=/dev/zero of={} bs=1M count=256 conv=fsync status=none; do :; done"


@contextlib.contextmanager
def load() -> Iterator[None]:
    """Busy loops and a writer that waits for the disk, until the block ends."""
    with tempfile.TemporaryDirectory() as directory:
        commands = ["while :; do :; done"] * LOOPS + [_WRITE.format(f"{directory}/written")]
        started = [
            subprocess.Popen(["timeout", f"{HOURS}h", "sh", "-c", each]) for each in commands
        ]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()


def run(seed: int, arguments: list[str]) -> tuple[int, float]:
    """The exit status and the seconds of one run."""
    order = ["-p", "random_order", "--random-order", f"--random-order-seed={seed}"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *order, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(seed % 2**32)},
    )
    return done.returncode, time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.stress", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next is +1")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    asked = parser.parse_args()
    results = []
    with load():
        for seed in range(asked.seed, asked.seed + asked.runs):
            results.append((seed, *run(seed, asked.pytest)))
    for seed, status, seconds in results:
        print(f"seed {seed}: {'green' if status == 0 else 'RED'} in {seconds:.0f} s")
    return int(any(status for _, status, _ in results))


if __name__ == "__main__":
    sys.exit(main())
