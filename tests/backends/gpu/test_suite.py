"""`make test-gpu` without a GPU: it does not look like a success, and what it would do is right."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from tests.gpu.test_dali import compare_batches, make_files, share_of_our_memory
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
    assert "[cuda12]' (or cuda13)" in done.stderr
    assert "passed" not in done.stdout
    assert f"pytest -q {' '.join(SUITE[2:])}" in (ROOT / "Makefile").read_text()


@pytest.mark.long
def test_if_all_tests_were_left_out_it_is_no_success(kernels):
    tests = [*SUITE[:-1], "tests/gpu/test_memory.py", "-k", "exported"]
    done = run("-m", "tests.kit.gpu_on_host", str(kernels(1)), *tests)
    assert done.returncode == 2
    assert "1 skipped" in done.stdout


@pytest.mark.long
def test_all_but_dali_runs_on_the_host(kernels, tmp_path):
    figures = tmp_path / "figures.xml"
    options = [f"--junitxml={figures}", "--ignore=tests/gpu/test_dali.py"]
    done = run("-m", "tests.kit.gpu_on_host", str(kernels(1)), *SUITE, *options)
    assert done.returncode == 0, done.stdout
    properties = ElementTree.parse(figures).iter("property")
    measured = {each.get("name"): each.get("value") for each in properties}
    assert measured["GPU"] == "no GPU"
    for queues in (1, 2, 4, 8):
        for what in ("one controller, queue pairs", "a queue pair each, controllers"):
            value, unit = measured[f"reads of 4 KiB, {what}: {queues}"].split()
            assert (unit, float(value.replace(",", "")) > 0) == ("/s", True)
    assert measured["attribute DMA_BUF_SUPPORTED"].split() == ["0"]
    for what in measured:
        assert what in done.stdout
    assert "do not export memory (attribute 124 is 0)" in done.stdout


def test_a_sample_of_ours_is_recognised_in_a_pipeline(jpegs, monkeypatch):
    assert share_of_our_memory(jpegs, None, monkeypatch) == 1


def test_batches_of_overwritten_buffers_are_compared(tmp_path, monkeypatch):
    assert compare_batches(make_files(tmp_path, 30), None, 50, monkeypatch) > 0
