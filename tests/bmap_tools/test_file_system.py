"""File systems, against blkid and stat; which storage is refused."""

import errno
import fcntl
import os

import pytest

from bmap_tools import device, file_system
from bmap_tools.device import UnsupportedStorage
from bmap_tools.file_system import Mount
from tests.kit.bmap.files import as_nobody
from tests.kit.devices import disk, mounted, require, run


def no_uuid(fd, request, *arguments):
    """fcntl.ioctl() before Linux 6.9."""
    raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")


def check_like_the_tools(made, sector, start):
    there, found = file_system.find(made.mount)
    blkid = run("blkid", "-p", "-o", "value", "-s", "TYPE", "-s", "UUID", made.device).split()
    assert sorted([there.uuid, there.type]) == sorted(blkid)
    assert there.block_size == int(run("stat", "-f", "-c", "%S", str(made.mount)))
    assert (found.path, found.disk) == (made.device, made.disk)
    assert found.size == int(run("blockdev", "--getsize64", made.device))
    assert found.disk_size == int(run("blockdev", "--getsize64", made.disk)) == 320 << 20
    assert found.logical_block_size == int(run("blockdev", "--getss", made.disk)) == sector
    assert found.start == start
    assert found.backing_file == str(made.image)
    assert (found.serial, found.wwid) == (None, None)
    assert device.examine(made.device) == found


def test_a_whole_disk_is_as_the_systems_tools_say(whole):
    check_like_the_tools(whole, int(run("blockdev", "--getss", whole.disk)), 0)


@pytest.mark.parametrize(("kind", "sector"), [("ext4", 4096), ("xfs", 512)])
def test_a_partition_is_as_the_systems_tools_say(tmp_path, kind, sector):
    with disk(tmp_path, kind, sector=sector, partition=True) as made:
        check_like_the_tools(made, sector, 1 << 20)
        assert file_system.find(made.mount)[1].size == (320 - 8) << 20
        assert device.examine(made.disk).start == 0


def test_a_directory_below_and_a_bind_mount_are_on_the_same_device(whole, tmp_path):
    (whole.mount / "below" / "deep").mkdir(parents=True, exist_ok=True)
    found = file_system.find(whole.mount)
    assert file_system.find(whole.mount / "below" / "deep") == found
    with mounted(str(whole.mount / "below"), tmp_path / "bound", "bind"):
        assert file_system.find(tmp_path / "bound" / "deep") == found


@pytest.mark.parametrize(
    ("mkfs", "types", "block_size"),
    [
        (("-b", "1024"), ("ext4",), 1024),
        (("-t", "ext2", "-b", "4096"), ("ext2", "ext4"), 4096),
        (("-t", "ext3", "-b", "4096"), ("ext3", "ext4"), 4096),
    ],
)
def test_small_blocks_and_the_older_exts_are_known(tmp_path, mkfs, types, block_size):
    with disk(tmp_path, "ext4", size=32 << 20, mkfs=mkfs) as made:
        found = file_system.find(made.mount)[0]
        assert found.uuid == run("blkid", "-p", "-o", "value", "-s", "UUID", made.device)
        assert found.type in types
        assert found.block_size == block_size


def test_before_linux_6_9_the_uuid_is_read_from_the_superblock(whole, monkeypatch):
    found = file_system.find(whole.mount)
    monkeypatch.setattr(fcntl, "ioctl", no_uuid)
    assert file_system.find(whole.mount) == found


def test_before_linux_6_9_and_without_root_the_error_says_what_is_missing(whole, monkeypatch):
    monkeypatch.setattr(fcntl, "ioctl", no_uuid)
    monkeypatch.chdir(whole.mount)  # nobody may not pass the directories above
    with as_nobody(), pytest.raises(UnsupportedStorage, match=r"UUID.*Linux 6\.9.*root"):
        file_system.find(".")


def test_another_failure_of_the_uuid_is_not_swallowed(whole, monkeypatch):
    def broken(fd, request, *arguments):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "ioctl", broken)
    with pytest.raises(OSError) as raised:
        file_system.find(whole.mount)
    assert raised.value.errno == errno.EIO


def test_a_superblock_is_read_from_devices_and_images_at_an_offset(whole, tmp_path):
    expected = run("blkid", "-p", "-o", "value", "-s", "UUID", whole.device)
    family = "xfs" if file_system.find(whole.mount)[0].type == "xfs" else "ext"
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
            assert file_system.superblock(fd, offset) == (family, expected)
        finally:
            os.close(fd)


@pytest.mark.parametrize(
    "content", [b"", b"XFSB", b"x" * 5000, bytes(100_000), b"XFSB" + b"x" * 50]
)
def test_an_image_without_a_file_system_is_refused(tmp_path, content):
    (tmp_path / "image").write_bytes(content)
    with open(tmp_path / "image", "rb") as image:
        with pytest.raises(UnsupportedStorage, match="byte 512"):
            file_system.superblock(image.fileno(), 512)
        with pytest.raises(UnsupportedStorage, match="byte 0"):
            file_system.superblock(image.fileno())


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("btrfs", (), "btrfs reports addresses in a logical space"),
        ("ext4", ("data=journal",), r"data=journal.*data=ordered"),
    ],
)
def test_btrfs_and_journaled_data_are_refused(tmp_path, kind, options, reason):
    with (
        disk(tmp_path, kind, options=options) as made,
        pytest.raises(UnsupportedStorage, match=reason),
    ):
        file_system.find(made.mount)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        *((kind, "network") for kind in ("nfs4", "cifs", "lustre")),
        *((kind, "FUSE") for kind in ("fuse", "fuse.sshfs", "fuseblk")),
        *(("9p", "host"), ("zfs", "pool"), ("squashfs", "unknown"), ("ext5", "unknown")),
        ("overlay", "combines other file systems; give the directory on the lower or upper one"),
    ],
)
def test_other_file_systems_are_refused_with_their_reason(kind, reason):
    why = file_system.unsupported_reason(Mount(kind, "rw"))
    assert why is not None
    assert why.startswith(kind)
    assert reason in why
    assert why.endswith("extents can be read from ext2, ext3, ext4 and XFS")
    for known in ("ext2", "ext3", "ext4", "xfs"):
        assert file_system.unsupported_reason(Mount(known, "rw")) is None


def test_journaled_data_is_refused_as_the_superblocks_default(tmp_path):
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
            file_system.find(made.mount)


@pytest.fixture
def shown(whole, monkeypatch, tmp_path):
    """Has mountinfo list what is given, with {0} for the mount of the descriptor it returns."""
    fd, real = os.open(whole.mount, os.O_RDONLY), open
    with real(f"/proc/self/fdinfo/{fd}") as file:
        number = file.read().partition("mnt_id:")[2].split()[0]

    def show(text):
        (tmp_path / "mountinfo").write_text(text.format(number))
        return fd

    def fake(path, *arguments, **options):
        found = tmp_path / "mountinfo" if path == "/proc/self/mountinfo" else path
        return real(found, *arguments, **options)

    monkeypatch.setattr("builtins.open", fake)
    yield show
    os.close(fd)


@pytest.mark.parametrize("optional", ["", "shared:1 ", "shared:1 master:2 propagate_from:3 "])
@pytest.mark.parametrize("source", ["/dev/sda1", r"/dev/my\040-\040disk", ""])
@pytest.mark.parametrize("options", ["ro", "rw,noquota", r"ro,journal_path=/a\040b"])
def test_the_options_of_the_superblock_are_told_from_those_of_the_mount(
    shown, optional, source, options
):
    others = "{0}0 1 8:1 / / rw - btrfs other rw\n1 {0} 8:1 / / rw - btrfs other rw\n"
    line = (
        rf"{{0}} 1 8:1 /\040-\040a /m\040-\040n\134 ro,relatime {optional}- ext4 {source} {options}"
    )
    assert file_system.mount_of(shown(others + line + "\n")) == Mount("ext4", options)


def test_a_mount_outside_of_what_a_container_sees_is_an_error(shown):
    with pytest.raises(FileNotFoundError, match="mountinfo"):
        file_system.mount_of(shown("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"))


def test_a_missing_path_or_a_wrong_kind_of_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        file_system.find(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        file_system.find(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        device.examine(str(tmp_path / "missing"))
    with pytest.raises(UnsupportedStorage, match="not a block device"):
        device.examine(str(tmp_path / "file"))
    with pytest.raises(UnsupportedStorage, match="not a block device"):
        device.examine("/dev/null")
