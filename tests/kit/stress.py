"""Runs `make test` again and again beside a heavy load: `make test-stress`, or

    python -m tests.kit.stress --runs 5

Four loops keep the processors busy and a writer keeps the disk busy. Each run has another order of
files and tests, and another PYTHONHASHSEED; `--seed` repeats them.
"""

import argparse
import os
import subprocess
import sys
import tempfile

from tests.kit.paths import ROOT

_WRITE = "while dd if=/dev/zero of={} bs=1M count=256 conv=fsync status=none; do :; done"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kit.stress", description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next is +1")
    parser.add_argument("pytest", nargs="*", help="further arguments of pytest, after --")
    asked = parser.parse_args()
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *asked.pytest]
    results = {}
    with tempfile.TemporaryDirectory() as directory:
        load = ["while :; do :; done"] * 4 + [_WRITE.format(f"{directory}/written")]
        # The load ends in any case.
        started = [subprocess.Popen(["timeout", "2h", "sh", "-c", each]) for each in load]
        try:
            for seed in range(asked.seed, asked.seed + asked.runs):
                order = ["-p", "random_order", "--random-order", f"--random-order-seed={seed}"]
                env = os.environ | {"PYTHONHASHSEED": str(seed % 2**32)}
                results[seed] = subprocess.call([*tests, *order], cwd=ROOT, env=env)
        finally:
            for process in started:
                process.terminate()
                process.wait()
    for seed, status in results.items():
        print(f"seed {seed}: {'RED' if status else 'green'}")
    return int(any(results.values()))


if __name__ == "__main__":
    sys.exit(main())
