"""Which disks and device nodes can be read, on trees that the tests make and on this machine."""

import os
import sys

import pytest

from dali_storage.backends.linux.storage import list_disks, node_problem
from dali_storage.backends.xnvme.nodes import list_nodes
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.devices import DeviceStatus
from tests.kit.process import alone, descriptors


def block(base, name, **attributes):
    """A block device of sysfs with its node."""
    for attribute, value in {"size": "2048", **attributes}.items():
        write(base / "sys/class/block" / name / attribute, value)
    write(base / "dev" / name, "")


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_whole_disks_are_listed_and_nothing_else(tmp_path):
    assert [*list_disks(str(tmp_path))] == []  # a machine without sysfs
    disks = ("nvme0n1", "sdb", "vda", "loop0", "ram1", "mmcblk0", "xvdc")
    for name in (*disks, "nvme0n1p1", "sdb1", "sr0", "zram0", "dm-0"):
        block(tmp_path, name)
    block(tmp_path, "loop1", size="0")
    block(tmp_path, "nvme1n1", hidden="1")
    assert [*list_disks(str(tmp_path))] == [
        DeviceStatus("/dev/loop0", "loop device"),
        DeviceStatus("/dev/mmcblk0", "MMC disk"),
        DeviceStatus("/dev/nvme0n1", "NVMe disk"),
        DeviceStatus("/dev/ram1", "RAM disk"),
        DeviceStatus("/dev/sdb", "SCSI disk"),
        DeviceStatus("/dev/vda", "virtio disk"),
        DeviceStatus("/dev/xvdc", "Xen disk"),
    ]
    (tmp_path / "dev/sdb").unlink()
    problem = str([*list_disks(str(tmp_path))][4].problem)
    assert problem == "no node in /dev; pass it to the container (docker run --device)"


def test_character_devices_of_namespaces_are_listed(tmp_path):
    for name in ("ng0n1", "ngx", "nvme0"):
        write(tmp_path / "dev" / name, "")
    assert [*list_nodes(str(tmp_path))] == [DeviceStatus("/dev/ng0n1", "NVMe character device")]


@pytest.mark.parametrize(
    ("permitted", "number", "reason", "remedy"),
    [
        (False, 13, "no permission to read it", "(setfacl -m u:$USER:r DEVICE)"),
        (True, 1, "permitted, but cannot be opened: Operation not permitted", "run --device"),
        (True, 123, "permitted, but cannot be opened: No medium found", ""),
    ],
)
def test_a_node_that_cannot_be_opened_is_reported_with_the_reason(
    tmp_path, monkeypatch, permitted, number, reason, remedy
):
    def refuse(path, flags):
        assert flags & os.O_ACCMODE == os.O_RDONLY
        assert flags & os.O_NONBLOCK
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: permitted)
    problem = node_problem(tmp_path / "sda")
    assert problem is not None
    assert problem.reason == reason
    assert remedy in problem.remedy
    assert bool(remedy) == bool(problem.remedy)


@alone
@pytest.mark.long
def test_devices_of_this_machine_are_opened_for_reading_only_and_closed():
    flags = {}

    def note(event, about):
        if event == "open":
            flags.setdefault(str(about[0]), about[2])

    sys.addaudithook(note)
    before = descriptors()
    statuses = list(XnvmeBlockReader.devices())
    assert descriptors() == before
    opened = {path: how for path, how in flags.items() if path.startswith("/dev/")}
    assert {*opened} == {status.name for status in statuses if status.name.startswith("/dev/")}
    assert {how & os.O_ACCMODE for how in opened.values()} <= {os.O_RDONLY}
    assert all(how & os.O_NONBLOCK for how in opened.values())
