"""The import hook that subprocesses and notebooks get from conftest.py."""

from __future__ import annotations

import subprocess
import sys


def test_torchvision_can_be_imported_here_and_in_a_subprocess() -> None:
    from torchvision.transforms import v2

    assert v2.CenterCrop(2)
    program = "import torchvision; from torchvision.transforms import v2; print(v2.CenterCrop(2))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "CenterCrop(size=(2, 2))\n"), done.stderr
