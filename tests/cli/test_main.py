"""`python -m dali_storage` before its commands."""

import subprocess
import sys

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
