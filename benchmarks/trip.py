"""The way of a batch through the code: `python -m benchmarks.trip [--unobserved]`.

Prints the files that a steady batch of 64 samples of `readers.file` enters, and the moves between
files, in all threads; with the observer that users have, or with the one that sees nothing.
"""

import os
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from nvidia.dali import Pipeline

from dali_storage import readers
from dali_storage.readers import plugs
from dali_storage.reading.slots import Observer

_ROOT = Path(__file__).parents[1]
_FILES, _BATCH, _PAUSE = 960, 64, 0.5  # seconds, until the lanes have read ahead
_LOOKS = 3  # batches, of which the shortest way counts: on a busy machine, threads wait more often
_BATCHES = 40  # more than two epochs: all sizes and buffers are known


def main() -> None:
    """Print the trip."""
    if "--unobserved" in sys.argv:
        vars(plugs)["Meter"] = lambda *_, **__: Observer()
    with tempfile.TemporaryDirectory() as root:
        for number in range(_FILES):
            path = Path(root, f"class{number % 3}", f"{number}.jpg")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(30_000))
        entered = _entered(root)
    moves = _moves(entered)
    files = sorted({file for way in entered for file in way})
    visits = Counter(there for way in entered for here, there in pairwise(way) if here != there)
    print(f"a steady batch: {moves} moves in {len(files)} files")
    for file in files:
        print(f"  {visits[file]:3} {file}")


def _entered(root: str) -> list[list[str]]:
    """The file of each call and return of a steady batch, for each thread."""
    log: defaultdict[int, list[str]] = defaultdict(list)
    stacks: defaultdict[int, list[str]] = defaultdict(list)

    def note(frame: FrameType, event: str, _: Any) -> None:
        path = os.path.realpath(frame.f_code.co_filename)
        ours = path.startswith(f"{_ROOT}/") and path.endswith(".py") and "/.venv" not in path
        if event not in ("call", "return") or not ours:
            return
        thread = threading.get_ident()
        stack = stacks[thread]
        if event == "call":
            stack.append(os.path.relpath(path, _ROOT).removesuffix(".py"))
        elif stack:
            stack.pop()
        log[thread] += stack[-1:]

    threading.setprofile(note)
    pipe = Pipeline(_BATCH, 1, None)
    with pipe:
        pipe.set_outputs(*readers.file(file_root=root, random_shuffle=True, seed=1))
    pipe.build()
    sys.setprofile(note)
    for _ in range(_BATCHES):
        pipe.run()
    time.sleep(_PAUSE)
    ways = []
    for _ in range(_LOOKS):
        log.clear()
        pipe.run()
        time.sleep(_PAUSE)
        ways.append([[*way] for way in log.values()])
    sys.setprofile(None)
    threading.setprofile(None)
    return min(ways, key=_moves)


def _moves(ways: list[list[str]]) -> int:
    return sum(here != there for way in ways for here, there in pairwise(way))


if __name__ == "__main__":
    main()
