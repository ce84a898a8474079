"""`make test-gpu` without a GPU: it does not look like a success, and what it would do is right."""

import json
import subprocess
import sys

import pytest

from tests.gpu.test_dali import benchmark_of, compare_batches, make_files, share_of_our_memory
from tests.kit.paths import ROOT

SUITE = ["-p", "no:cacheprovider", "--confcutdir=tests/gpu", "tests/gpu"]


def run(*command):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=900
    )


def test_without_a_gpu_make_test_gpu_says_that_nothing_could_run():
    code = "import sys, pytest; sys.modules['cupy'] = None; sys.exit(pytest.main(sys.argv[1:]))"
    done = run("-c", code, *SUITE)
    assert done.returncode == 2
    assert "nothing could run: " in done.stderr
    assert "pip install 'dali-storage[cuda12]'" in done.stderr
    assert "passed" not in done.stdout


def test_if_all_tests_were_left_out_it_is_no_success(kernels):
    tests = [*SUITE[:-1], "tests/gpu/test_memory.py", "-k", "exported"]
    done = run("-m", "tests.kit.gpu_on_host", str(kernels(1)), *tests)
    assert done.returncode == 2
    assert "1 skipped" in done.stdout


@pytest.mark.long
def test_all_but_dali_runs_on_the_host(kernels, tmp_path):
    figures = tmp_path / "figures.json"
    options = ["--figures", str(figures), "--ignore=tests/gpu/test_dali.py"]
    done = run("-m", "tests.kit.gpu_on_host", str(kernels(1)), *SUITE, *options)
    assert done.returncode == 0, done.stdout
    document = json.loads(figures.read_text())
    measured = {row["what"]: row for row in document["figures"]}
    assert document["machine"]["GPU"] == "no GPU"
    for queues in (1, 2, 4, 8):
        for what in ("one controller, queue pairs", "a queue pair each, controllers"):
            row = measured[f"reads of 4 KiB, {what}: {queues}"]
            assert (row["unit"], row["value"] > 0) == ("/s", True)
    assert measured["attribute DMA_BUF_SUPPORTED"]["value"] == 0
    (why,) = (why for test, why in document["left_out"].items() if "exported" in test)
    assert why.endswith("do not export memory (attribute 124 is 0)")
    for what in measured:
        assert what in done.stdout
    assert why in done.stdout


def test_a_sample_of_ours_is_recognised_in_a_pipeline(jpegs, monkeypatch):
    assert share_of_our_memory(jpegs, None, monkeypatch) == 1


@pytest.mark.long
def test_the_figures_of_the_benchmark_are_found(jpegs, tmp_path):
    found = benchmark_of(jpegs, tmp_path, ("python-file", "memory"), "--batchsize", 8)
    for leg in ("python-file", "memory"):
        assert found[leg]["memory"] == "cpu"
        assert found[leg]["summary"]["img_per_s"] > 0
        assert found[leg]["summary"]["cpu_s_per_gb"] > 0


def test_batches_of_overwritten_buffers_are_compared(tmp_path, monkeypatch):
    assert compare_batches(make_files(tmp_path, 30), None, 50, monkeypatch) > 0


def test_make_runs_what_is_tested_here():
    makefile = (ROOT / "Makefile").read_text()
    assert f"pytest -q {' '.join(SUITE[2:])}" in makefile
