"""Files are replaced as a whole, and nothing but files."""

import os
import resource
import socket
import stat
from contextlib import contextmanager

import pytest

from bmap_tools.atomic import destination, replacing


def bound(path):
    with socket.socket(socket.AF_UNIX) as it:
        it.bind(path)


NODES = {
    "a block device": lambda path: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(0, 0)),
    "a character device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0)),
    "a FIFO": os.mkfifo,
    "a socket": bound,
    "this is a directory": os.mkdir,
    "a link without an end": lambda path: os.symlink(path, path),
}


def make_node(kind, path):
    """Make a node; return what stays: its inode, kind and device."""
    try:
        NODES[kind](path)
    except PermissionError:
        pytest.skip("device nodes need root: run the tests as root")
    return identity(path)


def identity(path):
    status = os.lstat(path)
    return status.st_ino, status.st_mode, status.st_rdev


@contextmanager
def files_of_at_most(nbytes):
    """In place of a full disk: the kernel refuses longer files of this process."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("kind", "target", "words"),
    [
        *((kind, target, kind) for kind in NODES for target in ("node", "link")),
        ("a FIFO", "no/x", "there is no directory '/.*/no'"),
        ("a FIFO", "node/x", "there is no directory '/.*/node'"),
        ("a FIFO", "", "this is a directory"),
        ("a FIFO", "new/", "this is a directory"),
        ("a FIFO", "new/.", "this is a directory"),
        ("a FIFO", "/proc/self/fd/{}", "a deleted file"),
        ("a FIFO", "l" * 300, "File name too long"),
    ],
)
def test_only_files_are_replaced(kind, target, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = make_node(kind, "node")
    os.symlink("node", "link")
    with open("deleted", "w") as deleted:
        os.unlink("deleted")
        target = target.format(deleted.fileno())
        for refuse in (destination, lambda it: replacing(it).__enter__()):
            with pytest.raises(OSError, match=words) as caught:
                refuse(target)
            assert caught.value.filename == target
    assert (identity("node"), {*os.listdir()}) == (before, {"link", "node"})


@pytest.mark.parametrize(
    ("chunks", "needed"),
    [([b"x" * 5000], "5,000"), ([b"x"] * 101, "101"), ([b"x" * 90_000, b"y" * 7], "90,000")],
)
def test_a_file_without_room_is_named_with_its_bytes(chunks, needed, tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    words = f"File too large; the file needs at least {needed} bytes"
    with pytest.raises(OSError, match=words) as caught, replacing(str(target)) as file:  # noqa: SIM117
        with files_of_at_most(100):
            file.writelines(chunks)
            file.flush()
    assert caught.value.filename == str(target)
    assert (target.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])
