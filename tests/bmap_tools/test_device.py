"""Block devices, against sysfs as the kernel documents it."""

import pytest

from bmap_tools import device, file_system
from bmap_tools.device import UnsupportedStorage


def test_a_node_may_be_given_by_any_path(whole, tmp_path):
    (tmp_path / "by-id").symlink_to(whole.device)
    assert device.examine(str(tmp_path / "by-id")) == file_system.find(whole.mount)[1]


def sysfs(directory, attributes, *, sector=512):
    defaults = {
        "size": "1000000\n",
        "uevent": f"MAJOR=259\nDEVNAME={directory.name}\nDEVTYPE=disk\n",
        "queue/logical_block_size": f"{sector}\n",
    }
    for name, content in (defaults | attributes).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def test_a_partition_of_an_nvme_namespace(tmp_path):
    namespace = sysfs(
        tmp_path / "nvme0n1",
        {"wwid": "eui.0025385881b1a1f6\n", "device/serial": "S3EVNX0J800111      \n"},
        sector=4096,
    )
    part = sysfs(namespace / "nvme0n1p2", {"start": "2048\n", "partition": "2\n", "size": "8000\n"})
    (part / "queue" / "logical_block_size").unlink()  # only disks have it
    found = device.of_sysfs(str(part))
    assert found == device.Device(
        path="/dev/nvme0n1p2",
        size=8000 * 512,  # sysfs counts in 512 bytes on 4Kn, too
        logical_block_size=4096,
        disk="/dev/nvme0n1",
        disk_size=1_000_000 * 512,
        start=2048 * 512,
        serial="S3EVNX0J800111",
        wwid="eui.0025385881b1a1f6",
        backing_file=None,
    )


@pytest.mark.parametrize(
    ("name", "attributes", "serial", "wwid"),
    [
        ("sda", {"device/wwid": "naa.5002538e40a1b2c3\n"}, None, "naa.5002538e40a1b2c3"),
        ("vda", {"serial": "disk-1\n"}, "disk-1", None),
        ("vdb", {"serial": "\n"}, None, None),
        ("xvda", {}, None, None),
        ("ram0", {}, None, None),
        ("mmcblk0", {"device/serial": "0x12345678\n"}, "0x12345678", None),
    ],
)
def test_serial_and_wwid_of_disks_of_other_kinds(tmp_path, name, attributes, serial, wwid):
    found = device.of_sysfs(str(sysfs(tmp_path / name, attributes)))
    assert (found.path, found.disk, found.start) == (f"/dev/{name}", f"/dev/{name}", 0)
    assert (found.serial, found.wwid) == (serial, wwid)


def test_logical_blocks_of_more_than_4096_bytes_are_refused(tmp_path):
    described = sysfs(tmp_path / "nvme0n1", {}, sector=8192)
    with pytest.raises(UnsupportedStorage, match=r"/dev/nvme0n1 has logical blocks of 8192 bytes"):
        device.of_sysfs(str(described))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dm-0", "device-mapper.*LVM"),
        *((name, "RAID") for name in ("md0/md0p1", "md127")),
        *(("bcache0", "bcache"), ("drbd1", "DRBD"), ("zd16", "ZFS"), ("zram0", "memory")),
        *((name, "network") for name in ("nbd0", "rbd0")),
        *((name, "unknown") for name in ("md_d0", "ublkb0", "nvme0c0n1")),
    ],
)
def test_devices_that_are_not_plain_disks_are_refused(tmp_path, name, reason):
    disk, _, partition = name.partition("/")
    described = sysfs(tmp_path / disk, {})
    if partition:
        described = sysfs(described / partition, {"start": "2048"})
    with pytest.raises(UnsupportedStorage, match=rf"/dev/{described.name} is on .*{reason}"):
        device.of_sysfs(str(described))


def test_a_device_that_sysfs_does_not_describe_is_unsupported(tmp_path):
    with pytest.raises(UnsupportedStorage, match="sysfs"):
        device.of_sysfs(str(tmp_path / "259:7"))
    (sysfs(tmp_path / "sda", {}) / "size").unlink()
    with pytest.raises(UnsupportedStorage, match="sysfs"):
        device.of_sysfs(str(tmp_path / "sda"))
