"""`python -m dali_storage` before its commands."""

import json
import os
import subprocess
import sys

import pytest

from dali_storage import readers
from tests.kit.dali import build

CODE = """
import runpy, sys

class Stop:
    def find_spec(name, *_):
        if name == "dali_storage.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop)
runpy.run_module("dali_storage", run_name="__main__")
"""


def test_a_ctrl_c_during_the_imports_is_one_line():
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


@pytest.fixture
def state(tmp_path):
    """The path of a state, and the directory "se t/ü" that its run reads."""
    root = tmp_path / "se t" / "ü"
    (root / "a").mkdir(parents=True)
    for number in range(20):
        (root / "a" / f"{number}.jpg").write_bytes(b"x")
    pipeline = build(readers.file, 4, file_root=root, name="R", pad_last_batch=True)
    pipeline.run()
    path = root.parent / "state"
    path.write_text(json.dumps(readers.state(pipeline, "R")))
    return path, root


REPLAY = "replay {0} {1} --step 0"


@pytest.mark.parametrize(
    ("words", "full"),
    [("--help", 0), ("doctor {1}", 0), ("prove {1}", 0), (REPLAY, 0), (REPLAY, 1)],
)
def test_output_may_go_to_a_closed_pipe_or_a_full_disk(words, full, state):
    command = [sys.executable, "-m", "dali_storage", *(it.format(*state) for it in words.split())]
    # Nothing can be written in this home.
    setting = {"HOME": "/proc", "NO_COLOR": "1", "COLUMNS": "60", "PYTHONUNBUFFERED": ""}
    gone, out = os.pipe()
    os.close(gone)
    with open("/dev/full" if full else out, "w") as stdout:
        done = subprocess.run(
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=os.environ | setting
        )
    said = "error: the output cannot be written: No space left on device\n" if full else ""
    assert (done.returncode, done.stderr) == (2, said)
