"""A thread that hangs and its mount as /proc tells them, and what is said where it does not."""

import os
import platform
import threading

import pytest

from dali_storage.observing import kernel
from dali_storage.observing.kernel import UNKNOWN, Mounted, ThreadState, mount_of, thread_state
from tests.kit.process import SECONDS, wait_until

MOUNTS = rb"""
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 22 0:30 / /data rw,relatime shared:7 master:1 - nfs4 nas:/export/data rw,vers=4.2,addr=10.0.0.7
31 30 0:31 / /data/a\040b rw - cifs //nas/a\040b rw,addr=fe80::1
32 30 0:32 / /data/train rw - fuse.s3fs s3fs rw
33 30 0:33 / /data/train rw - overlay overlay rw,lowerdir=/x
broken
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/data/x", Mounted(b"/data", "nfs4", "nas:/export/data", "10.0.0.7")),
        (b"/data", Mounted(b"/data", "nfs4", "nas:/export/data", "10.0.0.7")),
        (b"/data/a b/\xff", Mounted(b"/data/a b", "cifs", "//nas/a b", "fe80::1")),
        (b"/data/../data/train/0.jpg", Mounted(b"/data/train", "overlay", "overlay")),
        (b"/database/x", Mounted(b"/", "ext4", "/dev/vda")),
    ],
)
def test_a_mount_is_found_by_the_longest_name_and_the_last_one_is_on_top(path, expected):
    assert mount_of(path, MOUNTS) == expected


def test_a_mount_is_shown_with_its_server():
    shown = str(mount_of(b"/data/x", MOUNTS))
    assert shown == "nfs4 nas:/export/data (10.0.0.7) on /data"


def test_the_mount_of_a_file_is_the_kernels(tmp_path):
    mount = mount_of(os.fsencode(tmp_path))
    assert mount
    assert os.path.ismount(mount.point)
    assert os.stat(mount.point).st_dev == os.stat(tmp_path).st_dev


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="other system calls")
@pytest.mark.parametrize("relative", [False, True])
def test_a_thread_that_opens_a_file_is_seen_with_the_file(tmp_path, monkeypatch, relative):
    """To open a pipe blocks, until somebody writes to it."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / ("pipe \xe9 " + "x" * 200)
    os.mkfifo(path)
    opened = path.name if relative else path

    def read():
        with open(opened, "rb") as pipe:
            pipe.read()

    thread = threading.Thread(target=read)
    thread.start()
    wait_until(lambda: thread_state(thread.native_id).path == os.fsencode(path))
    seen = thread_state(thread.native_id)
    with open(path, "wb") as pipe:
        assert (seen.state, seen.call) == ("S (sleeping)", "openat")
        # It now waits for bytes.
        wait_until(lambda: thread_state(thread.native_id).call == "read")
        assert thread_state(thread.native_id).path == os.fsencode(path)
        pipe.write(b"x")
    thread.join(SECONDS)


def test_of_a_thread_that_has_ended_and_without_proc_nothing_is_known(tmp_path, monkeypatch):
    thread = threading.Thread()
    thread.start()
    thread.join(SECONDS)
    nothing = ThreadState(UNKNOWN, UNKNOWN, UNKNOWN, None)
    wait_until(lambda: thread_state(thread.native_id) == nothing)  # join() is earlier than its end
    assert thread_state(threading.get_native_id(), str(tmp_path)) == nothing
    assert mount_of(b"/x", b"") is None


@pytest.mark.parametrize("told", ["running", "-1 0x7f00 0x7f01", "9999 0x0", "17 0xffff", "257 x"])
def test_a_call_without_a_file_has_none(tmp_path, monkeypatch, told):
    """`told`: by /proc; a page fault, an unknown call, a descriptor that is closed, and so on."""
    task = tmp_path / "task" / "1"
    task.mkdir(parents=True)
    (task / "stat").write_text("1 (a) R) S 0 0")
    (task / "wchan").write_text("0")
    (task / "syscall").write_text(told)
    monkeypatch.setattr(kernel, "_BY_NUMBER", {17: ("pread64", "fd"), 257: ("openat", "at")})
    calls = {"running": "none (running)", "-1": "none (a page fault)", "9999": "system call 9999"}
    calls |= {"17": "pread64", "257": "none (running)"}
    expected = ThreadState("S (sleeping)", "0", calls[told.split()[0]], None)
    assert thread_state(1, str(tmp_path)) == expected
