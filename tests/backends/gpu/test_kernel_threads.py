"""The kernel on the host under ThreadSanitizer."""

import os
import subprocess
import sys

import pytest

from tests.kit.nvme_sim import build
from tests.kit.paths import ROOT


@pytest.mark.long
def test_the_kernel_has_no_data_race(sim_folder):
    controller = build.build_controller(sim_folder / "controller_tsan", flags=build.SANITIZED)
    command = [build.COMPILER, "-print-file-name=libtsan.so"]
    runtime = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    environment = {
        **os.environ,
        "LD_PRELOAD": runtime,
        "TSAN_OPTIONS": "exitcode=66 halt_on_error=1 atexit_sleep_ms=0",
        "OPENBLAS_NUM_THREADS": "1",
    }
    # GCC 12's runtime does not find room where addresses are randomized.
    trials = ("setarch", "-R", sys.executable, "-m", "tests.kit.nvme_sim.trial")
    for lanes in (4, 1):
        kernel = build.build_kernel(sim_folder / f"tsan{lanes}", lanes, flags=build.SANITIZED)
        done = subprocess.run(
            [*trials, str(controller), str(kernel), "2"],  # seconds
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert int(done.stdout) >= 1
