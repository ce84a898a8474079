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
        it.bind(os.path.relpath(path))  # a short name


NODES = {
    "a block device": lambda path: os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(0, 0)),
    "a character device": lambda path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0)),
    "a FIFO": os.mkfifo,
    "a socket": bound,
    "this is a directory": os.mkdir,
    "a link without an end": lambda path: os.symlink(path, path),
}


def state(path):
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


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", NODES)
def test_only_files_are_replaced(kind, linked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    node = target = tmp_path / "node"
    try:
        NODES[kind](node)
    except PermissionError:
        pytest.skip("device nodes need root: run the tests as root")
    if linked:
        target = tmp_path / "link"
        target.symlink_to("node")
    before = state(node)
    with pytest.raises(OSError, match=kind) as caught, replacing(str(target)):
        pytest.fail("it is opened")
    assert caught.value.filename == str(target)
    assert (state(node), len(os.listdir())) == (before, 1 + linked)


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("no/x", FileNotFoundError, "there is no directory '/.*/no'"),
        ("file/x", FileNotFoundError, "there is no directory '/.*/file'"),
        ("", IsADirectoryError, "name a file"),
        ("new/", IsADirectoryError, "name a file"),
        ("new/.", IsADirectoryError, "name a file"),
        ("pipe", FileExistsError, "a FIFO is not replaced"),
        ("deleted", FileExistsError, "a deleted file is not replaced"),
        ("l" * 300, OSError, "File name too long"),
    ],
)
def test_a_target_that_cannot_be_written_is_named(target, error, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    reads, writes = os.pipe()
    with open("gone", "w") as gone, os.fdopen(reads), os.fdopen(writes, "w") as pipe:
        os.unlink("gone")
        opened = {"pipe": pipe, "deleted": gone}.get(target)
        target = f"/proc/self/fd/{opened.fileno()}" if opened else target
        with pytest.raises(error, match=words) as caught, replacing(target):
            pass
    assert caught.value.filename == target
    assert os.listdir() == ["file"]


def test_a_link_stays_and_an_open_file_keeps_its_bytes(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    with open(tmp_path / "file", "rb") as reader:
        with replacing(str(tmp_path / "link")) as file:
            file.write(b"new")
            assert (tmp_path / "file").read_bytes() == b"old"
        assert (reader.read(), (tmp_path / "link").read_bytes()) == (b"old", b"new")
    assert (os.readlink(tmp_path / "link"), len(os.listdir(tmp_path))) == ("file", 2)
    assert destination(str(tmp_path / "link")) == os.path.realpath(tmp_path / "file")


@pytest.mark.parametrize(
    ("chunks", "needed"),
    [([b"x" * 5000], "5,000"), ([b"x"] * 101, "101"), ([b"x" * 90_000, b"y" * 7], "90,000")],
)
def test_a_file_without_room_is_named_with_its_bytes(chunks, needed, tmp_path):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with (
        pytest.raises(OSError, match=f"File too large; the file needs at least {needed}") as caught,
        replacing(str(target)) as file,
        files_of_at_most(100),
    ):
        file.writelines(chunks)
        file.flush()
    assert caught.value.filename == str(target)
    assert (target.read_bytes(), os.listdir(tmp_path)) == (b"old", ["file"])
