"""The situations of `compare --in`: their file systems and limits exist, and end with the run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import memory, slow
from benchmarks.situations import SITUATIONS
from benchmarks.workload import NotHereError
from tests.kit.paths import ROOT
from tests.kit.process import started, wait_until

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and cgroups need root: sudo")


def mounts():
    return Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def slow_copy(data, tmp_path):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("a FUSE mount needs root and /dev/fuse: sudo modprobe fuse")
    with slow.mounted(str(data / "train"), str(tmp_path), 0.01) as place:
        yield Path(place)
    assert str(tmp_path) not in mounts()
    assert not os.path.exists(place)


def test_a_slow_file_system_has_the_same_files_and_waits_for_each_request(data, slow_copy):
    paths = sorted((data / "train").rglob("*.jpg"))
    names = [path.relative_to(data / "train") for path in paths]
    assert sorted(it.relative_to(slow_copy) for it in slow_copy.rglob("*.jpg")) == names
    start = time.monotonic()
    assert [(slow_copy / name).read_bytes() for name in names] == [it.read_bytes() for it in paths]
    assert time.monotonic() - start >= 0.02 * len(names)  # open and read, at least
    assert [(slow_copy / it).stat().st_size for it in names] == [it.stat().st_size for it in paths]
    fd = os.open(slow_copy / names[0], os.O_RDONLY | os.O_DIRECT)
    assert os.pread(fd, 1 << 20, 0) == paths[0].read_bytes()
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        (slow_copy / "missing").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (slow_copy / "new").touch()


def test_without_fuse_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(slow, "_DEVICE", str(tmp_path / "fuse"))
    said = r"fuse cannot be opened .*: it needs root, and modprobe"
    with pytest.raises(NotHereError, match=said), slow.mounted("/", str(tmp_path), 0):
        pass


@NEEDS_ROOT
def test_the_memory_is_limited_for_a_while():
    before = Path("/proc/self/cgroup").read_text()
    try:
        with memory.limited(300 << 20):
            _, _, limit, _ = memory._place()
            own = next(Path("/sys/fs/cgroup").rglob(f"dali-storage-benchmark-{os.getpid()}"))
            assert str(os.getpid()) in (own / "cgroup.procs").read_text().split()
            assert int((own / limit).read_text()) == 300 << 20
    except NotHereError as reason:
        pytest.skip(str(reason))
    assert Path("/proc/self/cgroup").read_text() == before
    assert not own.exists()


def test_a_memory_that_cannot_be_had_is_refused(tmp_path, monkeypatch):
    said = "a memory of 9 MiB; at least 200 are needed"
    with pytest.raises(NotHereError, match=said), memory.limited(9 << 20):
        pass
    monkeypatch.setattr(memory, "_place", lambda: (tmp_path, tmp_path, "memory.max", "swap"))
    said = f"the memory controller is not in {tmp_path}/cgroup.subtree_control"
    with pytest.raises(NotHereError, match=said), memory.limited(1 << 30):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.long
@NEEDS_ROOT
def test_every_situation_is_measured_or_says_what_is_missing(data, bench):
    done = bench("compare", "--datadir", data, "--in", "all", "--rounds", 1, "--batchsize", 8)
    assert done.status == 0, done.err
    assert done.out.startswith("no options: ")
    assert [*done.kept["situations"]] == [name for name in SITUATIONS if name != "twice"]
    assert "== twice\nnot measured: a memory of " in done.out
    for name, found in done.kept["situations"].items():
        reasons = [(it["skipped"], it["failed"]) for it in found["legs"].values()]
        assert reasons == [(None, None)] * len(SITUATIONS[name].legs), name
        assert set(found["verdict"]) <= set(done.kept["verdict"])
        assert all(row["ratio"] > 0 < row["cpu_ratio"] for row in found["verdict"].values())


@pytest.mark.long
@NEEDS_ROOT
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_server_of_a_slow_file_system(data, number):
    command = [sys.executable, ROOT / "benchmark.py", "compare", "--datadir", data, "--in", "slow"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([*command, "--rounds", "1000"], **pipes) as process:
        next(line for line in process.stderr if line.startswith("round 1/"))
        (server,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        process.communicate(timeout=120)
    wait_until(lambda: not os.path.exists(f"/proc/{server}"))
