"""Compares how fast readers deliver samples to a DALI pipeline, and the CPU time that they take.

    python benchmark.py demo
    python benchmark.py compare --datadir DIR --verify
    python benchmark.py objects --datadir DIR --url s3://bucket/prefix --verify
    python benchmark.py --batchsize 64 --batches 1000 python-file --datadir DIR

Exit status: 0 for success; 1 if a reader failed, or differs from fn.readers.file; 2 for
bad input; 130 after Ctrl-C, with the figures until then.
"""

import os
import shlex
import sys
from collections.abc import Sequence

_EXTRAS = {
    "nvidia": "cuda12",  # or cuda13
    **dict.fromkeys(("numpy", "rich", "matplotlib", "PIL", "google_crc32c"), "bench"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command of the command line; return the exit status."""
    try:
        # Not at the top: a missing package is reported in one line.
        from benchmarks import command

        return command.run(arguments)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        project = os.path.dirname(os.path.realpath(__file__))
        remedy = f"pip install -e {shlex.quote(f'{project}[{_EXTRAS[package]}]')}"
        print(f"benchmark: {missing.name} is not installed: {remedy}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
