"""A thread that hangs and its mount as /proc tells them, and what is said where it does not."""

import os
import re
import threading

import pytest

from dali_storage.observing.kernel import Mounted, mount_of, thread_state
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


def test_a_thread_that_waits_sleeps():
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    wait_until(lambda: re.fullmatch(r"S \(sleeping\), wait channel \S+", of(thread)))
    go.set()
    thread.join(SECONDS)


def of(thread):
    return thread_state(thread.native_id)


def test_of_a_thread_that_has_ended_and_without_proc_nothing_is_known(tmp_path):
    thread = threading.Thread()
    thread.start()
    thread.join(SECONDS)
    nothing = "unknown, wait channel unknown"
    wait_until(lambda: of(thread) == nothing)  # join() is earlier than its end
    assert thread_state(threading.get_native_id(), str(tmp_path)) == nothing
    assert mount_of(b"/x", b"") is None


def test_a_state_is_that_behind_the_name_of_the_thread(tmp_path):
    task = tmp_path / "task" / "1"
    task.mkdir(parents=True)
    (task / "stat").write_text("1 (a) R) D 0 0")
    (task / "wchan").write_text("folio_wait")
    assert thread_state(1, str(tmp_path)) == "D (uninterruptible), wait channel folio_wait"
