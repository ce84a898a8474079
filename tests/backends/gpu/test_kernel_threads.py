"""The kernel on the host under ThreadSanitizer."""

import os
import subprocess
import sys

import pytest

from tests.kit.nvme_sim import build
from tests.kit.paths import ROOT

BELL = "    if (lane == 0) write_doorbell(queue.submission_doorbell"


@pytest.fixture(scope="module")
def trials(sim_folder):
    """Tries a kernel for some seconds, or until a race."""
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
    program = ("setarch", "-R", sys.executable, "-m", "tests.kit.nvme_sim.trial")

    def run(name, lanes, seconds, texts=None):
        folder = sim_folder / name
        kernel = build.build_kernel(folder, lanes, flags=build.SANITIZED, texts=texts)
        return subprocess.run(
            [*program, str(controller), str(kernel), seconds],
            capture_output=True,
            text=True,
            timeout=600,
            env=environment,
            cwd=ROOT,
        )

    return run


@pytest.mark.long
@pytest.mark.parametrize("lanes", [4, 1])
def test_the_kernel_has_no_data_race(trials, lanes):
    done = trials(f"tsan{lanes}", lanes, "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) >= 1


@pytest.mark.long
def test_without_the_barrier_before_the_doorbell_a_data_race_is_found(trials):
    texts = build.sources()
    barrier = f"    sync_lanes();\n{BELL}"
    assert barrier in texts["submit.cu"]
    texts["submit.cu"] = texts["submit.cu"].replace(barrier, BELL)
    done = trials("tsan_race", 4, "60", texts)
    assert done.returncode == 66, done.stdout + done.stderr
    assert "WARNING: ThreadSanitizer: data race" in done.stderr
