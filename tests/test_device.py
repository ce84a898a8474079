"""bmap_tools.device: what the system's own tools say of devices, and which storage is refused."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bmap_tools.attributes import Attributes
from bmap_tools.mounts import Mount

from bmap_tools import attributes, device, mounts
from bmap_tools.device import UnsupportedStorage

from .devices import Disk, disk, loop_device, mounted, require, run

NOBODY = 65534


@pytest.fixture(scope="module", params=["ext4-512", "ext4-4096", "xfs-512", "xfs-4096"])
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disk]:
    file_system, sector = request.param.split("-")
    with disk(tmp_path_factory.mktemp("disk"), file_system, sector=int(sector)) as made:
        yield made


@contextmanager
def as_nobody() -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)


def no_uuid(fd: int, request: int, *arguments: Any) -> int:
    """fcntl.ioctl() before Linux 6.9."""
    raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")


def check_like_the_tools(made: Disk, sector: int, start: int) -> None:
    file_system, found = device.find(made.mount)
    blkid = run("blkid", "-p", "-o", "value", "-s", "TYPE", "-s", "UUID", made.device).split()
    assert sorted([file_system.uuid, file_system.type]) == sorted(blkid)
    assert file_system.block_size == int(run("stat", "-f", "-c", "%S", str(made.mount)))
    assert (found.path, found.disk) == (made.device, made.disk)
    assert found.size == int(run("blockdev", "--getsize64", made.device))
    assert found.disk_size == int(run("blockdev", "--getsize64", made.disk)) == 320 << 20
    assert found.logical_block_size == int(run("blockdev", "--getss", made.disk)) == sector
    assert found.start == start
    assert found.backing_file == str(made.image)
    assert (found.serial, found.wwid) == (None, None)
    assert device.examine(made.device) == found


def test_a_whole_disk_is_as_the_systems_tools_say(whole: Disk) -> None:
    check_like_the_tools(whole, int(run("blockdev", "--getss", whole.disk)), 0)


@pytest.mark.parametrize(("file_system", "sector"), [("ext4", 4096), ("xfs", 512)])
def test_a_partition_is_as_the_systems_tools_say(
    tmp_path: Path, file_system: str, sector: int
) -> None:
    with disk(tmp_path, file_system, sector=sector, partition=True) as made:
        check_like_the_tools(made, sector, 1 << 20)
        assert device.find(made.mount)[1].size == (320 - 8) << 20
        assert device.examine(made.disk).start == 0


def test_a_node_may_be_given_by_any_path(whole: Disk, tmp_path: Path) -> None:
    (tmp_path / "by-id").symlink_to(whole.device)
    assert device.examine(str(tmp_path / "by-id")) == device.find(whole.mount)[1]


def test_a_directory_below_and_a_bind_mount_are_on_the_same_device(
    whole: Disk, tmp_path: Path
) -> None:
    (whole.mount / "below" / "deep").mkdir(parents=True, exist_ok=True)
    found = device.find(whole.mount)
    assert device.find(whole.mount / "below" / "deep") == found
    with mounted(str(whole.mount / "below"), tmp_path / "bound", "bind"):
        assert device.find(tmp_path / "bound" / "deep") == found


def test_small_blocks_are_told(tmp_path: Path) -> None:
    with disk(tmp_path, "ext4", size=32 << 20, mkfs=("-b", "1024")) as made:
        assert device.find(made.mount)[0].block_size == 1024


@pytest.mark.parametrize("kind", ["ext2", "ext3"])
def test_the_older_exts_are_known(tmp_path: Path, kind: str) -> None:
    with disk(tmp_path, "ext4", size=32 << 20, mkfs=("-t", kind)) as made:
        found = device.find(made.mount)
        assert found[0].uuid == run("blkid", "-p", "-o", "value", "-s", "UUID", made.device)
        assert found[0].type in (kind, "ext4")


def test_before_linux_6_9_the_uuid_comes_from_the_superblock(
    whole: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = device.find(whole.mount)
    monkeypatch.setattr(fcntl, "ioctl", no_uuid)
    assert device.find(whole.mount) == found


def test_before_linux_6_9_and_without_root_the_error_says_what_is_missing(
    whole: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", no_uuid)
    monkeypatch.chdir(whole.mount)  # nobody may not pass the directories above
    with as_nobody(), pytest.raises(UnsupportedStorage, match=r"UUID.*Linux 6\.9.*root"):
        device.find(".")


def test_another_failure_of_the_uuid_is_not_swallowed(
    whole: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, request: int, *arguments: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "ioctl", broken)
    with pytest.raises(OSError) as raised:
        device.find(whole.mount)
    assert raised.value.errno == errno.EIO


def test_a_superblock_is_read_from_devices_and_images_at_an_offset(
    whole: Disk, tmp_path: Path
) -> None:
    expected = run("blkid", "-p", "-o", "value", "-s", "UUID", whole.device)
    family = "xfs" if device.find(whole.mount)[0].type == "xfs" else "ext"
    with open(whole.image, "rb") as image, open(tmp_path / "shifted", "wb") as shifted:
        shifted.seek(8192)
        shifted.write(image.read(65536))
    for path, flags, offset in (
        (whole.device, os.O_DIRECT, 0),
        (whole.image, 0, 0),
        (tmp_path / "shifted", 0, 8192),
    ):
        fd = os.open(path, os.O_RDONLY | flags)
        try:
            assert device.superblock(fd, offset) == (family, expected)
        finally:
            os.close(fd)


@pytest.mark.parametrize(
    "content", [b"", b"XFSB", b"x" * 5000, bytes(100_000), b"XFSB" + b"x" * 50]
)
def test_what_holds_no_file_system_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "image").write_bytes(content)
    with open(tmp_path / "image", "rb") as image:
        with pytest.raises(UnsupportedStorage, match="byte 512"):
            device.superblock(image.fileno(), 512)
        with pytest.raises(UnsupportedStorage, match="byte 0"):
            device.superblock(image.fileno())


def test_tmpfs_is_refused(tmp_path: Path) -> None:
    require("mount")
    (tmp_path / "memory").mkdir()
    run("mount", "-t", "tmpfs", "none", str(tmp_path / "memory"))
    try:
        with pytest.raises(UnsupportedStorage, match=r"memory: tmpfs lives in memory"):
            device.find(tmp_path / "memory")
    finally:
        run("umount", str(tmp_path / "memory"))


def test_overlay_is_refused(tmp_path: Path) -> None:
    with disk(tmp_path, "ext4", size=32 << 20) as made:
        for name in ("lower", "upper", "work", "merged"):
            (made.mount / name).mkdir()
        layers = ",".join(
            f"{key}={made.mount / key.removesuffix('dir')}"
            for key in ("lowerdir", "upperdir", "workdir")
        )
        run("mount", "-t", "overlay", "overlay", "-o", layers, str(made.mount / "merged"))
        try:
            with pytest.raises(UnsupportedStorage, match=r"overlay puts .* lower or upper"):
                device.find(made.mount / "merged")
        finally:
            run("umount", str(made.mount / "merged"))


def test_btrfs_is_refused(tmp_path: Path) -> None:
    with (
        disk(tmp_path, "btrfs") as made,
        pytest.raises(UnsupportedStorage, match="btrfs tells addresses in a logical space"),
    ):
        device.find(made.mount)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nfs4", "network"),
        ("cifs", "network"),
        ("lustre", "network"),
        ("fuse", "FUSE"),
        ("fuse.sshfs", "FUSE"),
        ("fuseblk", "FUSE"),
        ("9p", "host"),
        ("zfs", "pool"),
        ("squashfs", "not known"),
        ("ext5", "not known"),
    ],
)
def test_other_file_systems_are_refused_with_their_reason(kind: str, reason: str) -> None:
    why = mounts.obstacle(Mount(kind, "rw"))
    assert why is not None
    assert why.startswith(kind)
    assert reason in why
    assert why.endswith("extents can be read from ext2, ext3, ext4 and XFS")


@pytest.mark.parametrize("kind", ["ext2", "ext3", "ext4", "xfs"])
def test_these_file_systems_are_not_refused(kind: str) -> None:
    assert mounts.obstacle(Mount(kind, "rw")) is None


def test_journaled_data_is_refused_as_an_option(tmp_path: Path) -> None:
    with (
        disk(tmp_path, "ext4", size=64 << 20, options=("data=journal",)) as made,
        pytest.raises(UnsupportedStorage, match=r"data=journal.*data=ordered"),
    ):
        device.find(made.mount)


def test_journaled_data_is_refused_as_the_superblocks_default(tmp_path: Path) -> None:
    require("tune2fs")
    with disk(tmp_path, "ext4", size=64 << 20) as made:
        run("umount", str(made.mount))
        try:
            run("tune2fs", "-o", "journal_data", made.device)
        finally:
            run("mount", made.device, str(made.mount))
        with open("/proc/self/mountinfo") as lines:
            line = next(line for line in lines if str(made.mount) in line)
        assert "data=journal" not in line  # or it would be the other test once more
        with pytest.raises(UnsupportedStorage, match="data=journal"):
            device.find(made.mount)


def test_a_mount_outside_of_what_a_container_sees_is_an_error(
    whole: Disk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fd = os.open(whole.mount, os.O_RDONLY)
    (tmp_path / "mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    real = open

    def fake(path: Any, *arguments: Any, **options: Any) -> Any:
        shown = tmp_path / "mountinfo" if path == "/proc/self/mountinfo" else path
        return real(shown, *arguments, **options)

    monkeypatch.setattr("builtins.open", fake)
    try:
        with pytest.raises(FileNotFoundError, match="mountinfo"):
            mounts.of(fd)
    finally:
        os.close(fd)


def test_what_is_no_directory_or_not_there_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        device.find(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        device.find(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        device.examine(str(tmp_path / "missing"))
    with pytest.raises(UnsupportedStorage, match="not a block device"):
        device.examine(str(tmp_path / "file"))
    with pytest.raises(UnsupportedStorage, match="not a block device"):
        device.examine("/dev/null")


# sysfs as the kernel's Documentation/ABI/stable/sysfs-block describes it, for devices that are not
# here.


def sysfs(directory: Path, attributes: dict[str, str], *, sector: int = 512) -> Path:
    defaults = {
        "size": "1000000\n",
        "uevent": f"MAJOR=259\nDEVNAME={directory.name}\nDEVTYPE=disk\n",
        "queue/logical_block_size": f"{sector}\n",
    }
    for name, content in (defaults | attributes).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(content)
    return directory


def test_a_partition_of_an_nvme_name_space(tmp_path: Path) -> None:
    namespace = sysfs(
        tmp_path / "nvme0n1",
        {"wwid": "eui.0025385881b1a1f6\n", "device/serial": "S3EVNX0J800111      \n"},
        sector=4096,
    )
    part = sysfs(namespace / "nvme0n1p2", {"start": "2048\n", "partition": "2\n", "size": "8000\n"})
    (part / "queue" / "logical_block_size").unlink()  # only disks have it
    found = device._describe(str(part))
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
def test_disks_of_other_kinds(
    tmp_path: Path, name: str, attributes: dict[str, str], serial: str | None, wwid: str | None
) -> None:
    found = device._describe(str(sysfs(tmp_path / name, attributes)))
    assert (found.path, found.disk, found.start) == (f"/dev/{name}", f"/dev/{name}", 0)
    assert (found.serial, found.wwid) == (serial, wwid)


def test_logical_blocks_of_more_than_4096_bytes_are_refused(tmp_path: Path) -> None:
    described = sysfs(tmp_path / "nvme0n1", {}, sector=8192)
    with pytest.raises(UnsupportedStorage, match=r"/dev/nvme0n1 has logical blocks of 8192 bytes"):
        device._describe(str(described))
    require("losetup")
    with open(tmp_path / "image", "wb") as image:
        image.truncate(1 << 20)
    try:
        with (
            loop_device(tmp_path / "image", sector=8192) as node,
            pytest.raises(UnsupportedStorage, match=f"{node} has logical blocks of 8192 bytes"),
        ):
            device.examine(node)
    except AssertionError as error:
        if "losetup" not in str(error):
            raise
        pytest.skip("this kernel makes no loop devices with blocks of 8192 bytes: Linux 6.15 does")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dm-0", "device-mapper.*LVM"),
        ("md127", "RAID"),
        ("md_d0", "not known"),
        ("bcache0", "bcache"),
        ("drbd1", "DRBD"),
        ("nbd0", "network"),
        ("rbd0", "network"),
        ("zd16", "ZFS"),
        ("zram0", "memory"),
        ("ublkb0", "not known"),
        ("nvme0c0n1", "not known"),
    ],
)
def test_devices_that_are_no_plain_disks_are_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    with pytest.raises(UnsupportedStorage, match=rf"/dev/{name} is on .*{reason}"):
        device._describe(str(sysfs(tmp_path / name, {})))


def test_a_partition_of_a_raid_is_refused(tmp_path: Path) -> None:
    raid = sysfs(tmp_path / "md0", {})
    with pytest.raises(UnsupportedStorage, match=r"/dev/md0p1 is on a RAID"):
        device._describe(str(sysfs(raid / "md0p1", {"start": "2048"})))


def test_a_device_that_sysfs_does_not_describe_is_unsupported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStorage, match="sysfs"):
        device._describe(str(tmp_path / "259:7"))
    (sysfs(tmp_path / "sda", {}) / "size").unlink()
    with pytest.raises(UnsupportedStorage, match="sysfs"):
        device._describe(str(tmp_path / "sda"))


# Attributes of single files.


def obstacle(file_system: str, path: Path) -> str | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return Attributes(file_system).obstacle(fd)
    finally:
        os.close(fd)


def test_plain_files_have_no_obstacle(whole: Disk) -> None:
    (whole.mount / "plain").write_bytes(b"x")
    assert obstacle(device.find(whole.mount)[0].type, whole.mount / "plain") is None


def set_flags(made: Disk, name: str, flags: int) -> None:
    """Set a file's flags where chattr needs CAP_SYS_RESOURCE."""
    run("umount", str(made.mount))
    try:
        run("debugfs", "-w", "-R", f"set_inode_field /{name} flags {flags}", made.device)
    finally:
        run("mount", made.device, str(made.mount))


def test_a_file_whose_data_is_journaled_is_told(tmp_path: Path) -> None:
    require("debugfs")
    with disk(tmp_path, "ext4", size=64 << 20) as made:
        (made.mount / "journaled").write_bytes(b"x")
        set_flags(made, "journaled", 0x84000)
        assert "j" in run("lsattr", str(made.mount / "journaled")).split()[0]
        assert "journal" in str(obstacle("ext4", made.mount / "journaled"))


@pytest.mark.parametrize(
    ("file_system", "flags", "reason"),
    [
        ("ext4", 0x800, "encrypted"),
        ("ext3", 0x4000, "journal"),
        ("ext2", 0x4, "compressed"),
        ("ext4", 0x80000, None),  # FS_EXTENT_FL
        ("xfs", 0x1, "real-time"),
        ("xfs", 0x2, None),  # FS_XFLAG_PREALLOC
        ("xfs", 0x800, None),  # not encrypted there, but FS_XFLAG_EXTSIZE
    ],
)
def test_flags_that_cannot_be_set_here(
    monkeypatch: pytest.MonkeyPatch, file_system: str, flags: int, reason: str | None
) -> None:
    requests = []

    def ioctl(fd: int, request: int, buffer: bytearray) -> int:
        requests.append(request)
        buffer[:4] = flags.to_bytes(4, "little")
        return 0

    monkeypatch.setattr(attributes.fcntl, "ioctl", ioctl)
    why = Attributes(file_system).obstacle(0)
    assert (why is None) == (reason is None)
    assert reason is None or reason in str(why)
    assert requests == [0x801C581F if file_system == "xfs" else 0x80086601]


def test_a_real_time_file_is_told(tmp_path: Path) -> None:
    require("mkfs.xfs", "xfs_io")
    for name in ("data", "realtime"):
        with open(tmp_path / name, "wb") as image:
            image.truncate(320 << 20)
    (tmp_path / "mnt").mkdir()
    with loop_device(tmp_path / "data") as data, loop_device(tmp_path / "realtime") as realtime:
        run("mkfs.xfs", "-q", "-f", "-r", f"rtdev={realtime}", data)
        command = ["mount", "-o", f"rtdev={realtime}", data, str(tmp_path / "mnt")]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("XFS with a real-time device cannot be mounted: needs CONFIG_XFS_RT")
        try:
            (tmp_path / "mnt" / "plain").write_bytes(b"x")
            path = str(tmp_path / "mnt" / "file")
            run("xfs_io", "-f", "-c", "chattr +r", "-c", "pwrite 0 100k", path)
            assert "real-time" in str(obstacle("xfs", Path(path)))
            assert obstacle("xfs", tmp_path / "mnt" / "plain") is None
        finally:
            run("umount", str(tmp_path / "mnt"))
