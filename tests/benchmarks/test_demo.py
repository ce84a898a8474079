"""The demo: its summary, its exit status, and that it leaves no disk behind."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import dataset, demo, environment
from benchmarks import disk as disks
from benchmarks.workload import NotHereError, Settings, prepare
from tests.kit.objects.buckets import Directory
from tests.kit.paths import ROOT
from tests.kit.process import started, wait_until

DEMO = """
import sys
from benchmarks import dataset
dataset.IMAGES = 40
import benchmark
sys.exit(benchmark.main(["demo", "--seconds", "0", "--batchsize", "8", *sys.argv[1:]]))
"""


HOT, COLD = "hot", "cold"


def running(tmp_path, *arguments):
    """The demo in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", DEMO, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return started(command, **pipes, env=environment, cwd=tmp_path)


def loops(directory):
    """The files of loop devices in a directory, also the deleted ones."""
    found = []
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(file.read_text().strip())
        except OSError:  # it was just detached
            continue
    return [path for path in found if path.startswith(f"{directory}/")]


def gone(directory):
    """Whether no disk is left of a directory: neither a loop device, nor a mount, nor a file."""
    left = os.path.ismount(directory / "disk") or (directory / "disk.img").exists()
    return not left and not loops(directory)


@pytest.mark.parametrize(
    ("user", "said"),
    [(1000, "loop devices need root: sudo make demo"),
     (0, "mkfs.ext4 is not installed: apt-get install e2fsprogs")],
)  # fmt: skip
def test_without_a_disk_the_reason_and_the_remedy_are_named(user, said, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda tool, path: None)
    with pytest.raises(NotHereError, match=re.escape(said)), disks.mounted("x", 1):
        pass


@pytest.mark.long
def test_the_demo_ends_with_a_short_summary_and_a_plot(tmp_path):
    with running(tmp_path, "--rounds", "1") as process:
        text, _ = process.communicate(timeout=600)
    assert process.returncode == 0, text
    steps, summary = text.split("\n\n")
    assert len(text.splitlines()) <= 60
    assert len(summary.splitlines()) <= 18
    x = r"[\d.]+x"
    assert re.search(
        r"^First batch, hot: fn.readers.file [\d.]+ s, readers.file [\d.]+ s\.$", summary, re.M
    )
    said = f"{x} hot, {x} cold, {x} S3 20 ms, {x} decoded of DALI's images a second"
    assert re.search(rf"\nSwap the call, and nothing else: {said}\.\n$", summary)
    assert "40 JPEGs of " in summary
    assert "bytes, labels and order are those of DALI." in summary
    row = re.search(r"^readers\.file( +[\d,]+ +[\d.]+x){4}$", text, re.M)
    assert row, text
    assert ("readers.file, block" in summary) == (os.geteuid() == 0)
    assert steps.count("verifying bytes, labels and order: ") == 2
    assert steps.index("verifying") < steps.index("timing")
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")
    wait_until(lambda: gone(tmp_path / "demo"))


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_disk_and_no_server(number, tmp_path):
    with running(tmp_path, "--rounds", "1000") as process:
        text = ""
        while "timing" not in text:
            text += (read := process.stdout.read(1))
            assert read, text
        assert len(loops(tmp_path / "demo")) == (os.geteuid() == 0)
        process.send_signal(number)
        rest, _ = process.communicate(timeout=600)  # also the server's end of the pipe
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert "Traceback" not in rest
    assert {*os.listdir(tmp_path / "demo")} == {"demo.log", "pictures"}
    wait_until(lambda: gone(tmp_path / "demo"))


@pytest.fixture
def demo_here(tmp_path, monkeypatch, bench):
    """Runs the demo in this process, without root and thus without a disk of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dataset, "IMAGES", 40)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    # DALI keeps the endpoint of the first s3:// in a process, and other tests need theirs.
    monkeypatch.setattr(demo, "OBJECT_LEGS", [leg for leg in demo.OBJECT_LEGS if leg.backend])
    return lambda: bench("--rounds", 1, "--batchsize", 8, "demo")


@pytest.mark.long
def test_a_reader_that_differs_from_dalis_fails_the_demo_and_is_not_timed(demo_here, monkeypatch):
    (ours,) = (leg for leg in demo.LEGS if leg.name == "python-file")

    def other_order(workload, exact):
        return ours.build(replace(workload, settings=replace(workload.settings, seed=2)), exact)

    legs = [replace(leg, build=other_order) if leg is ours else leg for leg in demo.LEGS]
    monkeypatch.setattr(demo, "LEGS", legs)
    monkeypatch.setattr(environment, "is_cold", lambda path: False)
    done = demo_here()
    assert done.status == 1
    assert "bytes, labels and order differ: see below" in done.out
    assert re.search(
        rf"^FAILED: python-file, {HOT}: \d+ differences from fn.readers.f", done.out, re.M
    )
    assert (
        "Left out: block, which reads a device: loop devices need root: sudo make demo" in done.out
    )
    assert re.search(r"^Left out: cold reads: \S+ keeps its pages", done.out, re.M)
    readers = done.kept[HOT]["readers"]
    assert (readers["python-file"]["rounds"], bool(readers["dali"]["rounds"])) == ([], True)
    assert COLD not in done.kept


def test_a_folder_that_cannot_be_used_is_refused_in_one_line(demo_here, tmp_path):
    (tmp_path / "demo" / "demo.log").mkdir(parents=True)
    done = [demo_here()]
    (tmp_path / "demo" / "demo.log").rmdir()
    with open(tmp_path / "demo" / "demo.log", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done += [demo_here()]
    assert [each.status for each in done] == [2, 2]
    assert done[0].err.startswith(
        "benchmark: demo: IsADirectoryError: Is a directory: demo/demo.log; "
    )
    assert (
        done[1].err == f"benchmark: another demo is running in {tmp_path}/demo: wait for its end\n"
    )


def test_without_root_the_pages_of_the_files_are_dropped(disk, data, monkeypatch):
    shutil.copytree(data / "train", disk.mount / "copy", dirs_exist_ok=True)
    workload = prepare(str(disk.mount / "copy"), Settings())
    path = workload.catalog.path(0)
    os.sync()
    environment.fill_page_cache(workload)
    assert not environment.is_cold(path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    environment.make_cold(workload)
    assert environment.is_cold(path)
    assert not environment.is_cold(b"/proc/self/status")  # which cannot be dropped, as on tmpfs


def test_the_server_of_the_demo_has_only_the_files_of_its_buckets(tmp_path):
    (tmp_path / "secret").write_text("s")
    (tmp_path / "bucket").mkdir()
    bucket = Directory(os.fsencode(tmp_path / "bucket"))
    for key in ("../secret", f"{tmp_path}/secret", "a/../../secret"):
        with pytest.raises(FileNotFoundError), bucket.opened(os.fsencode(key)):
            pass
