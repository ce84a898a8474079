"""Readers side by side: how fast each delivers samples to a DALI pipeline, and at what cost.

    python benchmark.py demo
    python benchmark.py compare --datadir DIR --verify
    python benchmark.py --batchsize 64 --batches 1000 python-file --datadir DIR

Exit status: 0 when all went well; 1 when a leg failed or delivered something else than
fn.readers.file; 2 for bad input; 130 after Ctrl-C, with what was measured until then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_BENCH = "pip install 'dali-storage[bench]'"
_REMEDIES = {
    "rich": _BENCH,
    "matplotlib": _BENCH,
    "PIL": _BENCH,
    "nvidia": "pip install 'dali-storage[cuda12]' (or cuda13)",
    "numpy": "pip install numpy",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; answer the exit status."""
    try:
        # Here and not above, so that a missing package gets a message and not a traceback.
        from benchmarks import command

        return command.run(arguments)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in _REMEDIES:
            raise
        print(f"benchmark: no {missing.name} here: {_REMEDIES[package]}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmark: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
