"""The situations of `compare --in`: their file systems and limits exist, and end with the run."""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import memory, slow, slow_server
from benchmarks.situations import SITUATIONS
from benchmarks.workload import NotHereError
from tests.kit.paths import ROOT
from tests.kit.process import started, wait_until

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and cgroups need root: sudo")


@pytest.fixture
def slow_copy(data, tmp_path, monkeypatch):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("a FUSE mount needs root and /dev/fuse: sudo modprobe fuse")
    # In the mounts of all: this process must still be able to end those of other tests.
    monkeypatch.setattr(slow, "own_mounts", lambda: ctypes.CDLL(None, use_errno=True))
    with slow.mounted(str(data / "train"), str(tmp_path), 0.01) as place:
        yield Path(place)
    assert not os.path.exists(place)


def test_a_slow_file_system_has_the_same_files(data, slow_copy):
    paths = sorted((data / "train").rglob("*.jpg"))
    names = [path.relative_to(data / "train") for path in paths]
    assert sorted(it.relative_to(slow_copy) for it in slow_copy.rglob("*.jpg")) == names
    assert [(slow_copy / name).read_bytes() for name in names] == [it.read_bytes() for it in paths]
    assert [(slow_copy / it).stat().st_size for it in names] == [it.stat().st_size for it in paths]
    fd = os.open(slow_copy / names[0], os.O_RDONLY | os.O_DIRECT)
    assert os.pread(fd, 1 << 20, 0) == paths[0].read_bytes()
    os.close(fd)
    with pytest.raises(FileNotFoundError):
        (slow_copy / "missing").stat()
    with pytest.raises(OSError, match="Read-only file system"):
        (slow_copy / "new").touch()


def test_a_request_is_answered_when_its_time_has_come(monkeypatch):
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    now, pauses, answered = [10.0], [], []

    def select(waited_for, writable, broken, pause):
        pauses.append(pause)
        if len(pauses) == 1:
            return [[its.fileno()]]
        if len(pauses) == 2:
            now[0] += 0.25
            return [[]]
        return [[sys.stdin]]

    monkeypatch.setattr(slow_server, "select", SimpleNamespace(select=select))
    monkeypatch.setattr(slow_server, "time", SimpleNamespace(monotonic=lambda: now[0]))
    server = slow_server.Server("/", 0.25, its.fileno())
    monkeypatch.setattr(server, "_answer", lambda request: answered.append((now[0], request)))
    with ours, its:
        lookup, release, forget = (struct.pack("<2I32x", 40, code) for code in (1, 18, 2))
        for request in (lookup, release, forget):
            ours.send(request)
        server.run()
    assert pauses == [None, 0.25, None]
    assert answered == [(10.0, release), (10.25, lookup)]


def test_without_fuse_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(slow, "_DEVICE", str(tmp_path / "fuse"))
    said = r"fuse cannot be opened .*: it needs root, and modprobe"
    with pytest.raises(NotHereError, match=said), slow.mounted("/", str(tmp_path), 0):
        pass


@NEEDS_ROOT
def test_the_memory_is_limited_for_a_while():
    before = memory._place()
    try:
        with memory.limited(800 << 20):
            own = Path(memory._place()[0])
            assert own.name == f"dali-storage-benchmark-{os.getpid()}"
            assert int((own / before[2]).read_text()) == 800 << 20
    except NotHereError as reason:
        pytest.skip(str(reason))
    assert memory._place() == before
    assert not own.exists()


def test_a_memory_that_cannot_be_had_is_refused(tmp_path, monkeypatch):
    said = "a memory of 9 MiB; at least 700 are needed"
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
    left_out = ("slow", "twice")
    assert [*done.kept["situations"]] == [name for name in SITUATIONS if name not in left_out]
    assert " files; at least 4,096 are needed: DALI's reader keeps 1,024 mapped" in done.out
    assert "== twice\nnot measured: a memory of " in done.out
    for name, found in done.kept["situations"].items():
        reasons = [(it["skipped"], it["failed"]) for it in found["readers"].values()]
        assert reasons == [(None, None)] * len(SITUATIONS[name].legs), name
        assert set(found["verdict"]) <= set(done.kept["verdict"])
        assert all(row["ratio"] > 0 < row["cpu_ratio"] for row in found["verdict"].values())


@pytest.mark.long
@NEEDS_ROOT
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_server_of_a_slow_file_system(data, number):
    few = "import benchmark; from benchmarks import situations; situations._MANY = 0"
    program = [sys.executable, "-c", f"{few}; benchmark.main()", "compare", "--in", "slow"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with started([*program, "--datadir", data, "--rounds", "1000"], **pipes) as process:
        next(line for line in process.stderr if line.startswith("round 1/"))
        (server,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        process.communicate(timeout=120)
    wait_until(lambda: not os.path.exists(f"/proc/{server}"))
