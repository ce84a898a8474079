"""Single files: which cannot be mapped, and why."""

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from bmap_tools import fiemap, inspection
from tests.kit.bmap.command import entries, fill, settle, through_the_image, tool
from tests.kit.bmap.files import set_flags
from tests.kit.devices import disk, require, run


def test_create_and_verify_leave_the_time_of_the_last_access(root, bmap):
    (path,) = fill(root, (5000,))
    os.utime(path, ns=(1, path.stat().st_mtime_ns))
    assert tool("create", root, "-o", bmap) == 0
    assert tool("verify", bmap) == 0
    assert path.stat().st_atime_ns == 1


def test_a_writer_that_waits_at_a_fifo_is_not_woken(ext4_root, bmap):
    os.mkfifo(ext4_root / "fifo")
    (ext4_root / "link").symlink_to("fifo")
    woken = threading.Event()

    def write():
        os.close(os.open(ext4_root / "fifo", os.O_WRONLY))
        woken.set()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    settle()
    assert tool("create", ext4_root, "-o", bmap) == 1
    assert list(entries(bmap)) == ["link"]
    assert tool("verify", bmap) == 0
    assert not woken.is_set()
    os.close(os.open(ext4_root / "fifo", os.O_RDONLY))
    writer.join(120)
    assert woken.is_set()


def test_data_in_the_inode_or_the_journal_is_not_mapped(tmp_path, bmap):
    require("debugfs")
    with disk(tmp_path, "ext4", size=64 << 20, mkfs=("-O", "inline_data", "-I", "256")) as made:
        (made.mount / "inline").write_bytes(b"tiny")
        (made.mount / "plain").write_bytes(b"x" * 50_000)
        (made.mount / "journaled").write_bytes(b"x" * 50_000)
        (made.mount / "empty").touch()
        set_flags(made, "journaled", 0x84000)
        assert tool("create", made.mount, "-o", bmap) == 1
        files = entries(bmap)
        assert files["inline"][::4] == [4, "its data lies inside of its inode"]
        assert files["journaled"][4] == "its new data goes to the journal first (chattr +j)"
        assert files["empty"][4] == []
        assert through_the_image(made, bmap)["plain"] == b"x" * 50_000


def test_a_file_with_a_time_beyond_64_bits_is_not_mapped(root, bmap):
    (root / "late").write_bytes(b"x")
    run("touch", "-d", "2400-01-01", str(root / "late"))
    if (root / "late").stat().st_mtime_ns < 2**63:
        pytest.skip("the file system has no time stamps beyond the year 2262")
    assert tool("create", root, "-o", bmap) == 1
    assert "2262" in entries(bmap)["late"][4]
    assert tool("verify", bmap) == 0


def test_a_large_inode_of_another_file_system_is_stored_as_the_largest(root, bmap, monkeypatch):
    """Such as a hash, of a file below a mount of rclone."""

    def elsewhere(fd):
        real = fstat(fd)
        fields = {name: getattr(real, name) for name in dir(real) if name.startswith("st_")}
        return SimpleNamespace(**fields | {"st_ino": 2**64 - 17, "st_dev": -1})

    fill(root, (5000,))
    settle()
    fstat = os.fstat
    monkeypatch.setattr(inspection, "os", SimpleNamespace(**vars(os) | {"fstat": elsewhere}))
    assert tool("create", root, "-o", bmap) == 1
    ((_, inode, *_, reason),) = entries(bmap).values()
    assert (inode, reason) == (2**63 - 1, "it is on another file system")


def test_a_file_whose_extents_cannot_be_read_is_not_mapped(root, bmap, monkeypatch):
    fill(root, (5000, 6000))

    def broken(fd, *, sync=True):
        if os.fstat(fd).st_size == 6000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, sync=sync)

    real = fiemap.raw_extents
    monkeypatch.setattr(fiemap, "raw_extents", broken)
    assert tool("create", root, "-o", bmap) == 1
    files = entries(bmap)
    assert files["c1/01.jpg"][::4] == [6000, "Input/output error"]
    assert len(files["c0/00.jpg"][4]) == 1


@pytest.mark.parametrize(
    ("kind", "flags", "reason"),
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
def test_a_file_with_a_flag_that_cannot_be_set_here_is_not_mapped(monkeypatch, kind, flags, reason):
    requests = []

    def ioctl(fd, request, buffer):
        requests.append(request)
        buffer[:4] = flags.to_bytes(4, "little")
        return 0

    monkeypatch.setattr(inspection.fcntl, "ioctl", ioctl)
    why = inspection.unsupported_attribute(0, kind)
    assert (why is None) == (reason is None)
    assert reason is None or reason in str(why)
    assert requests == [0x801C581F if kind == "xfs" else 0x80086601]
