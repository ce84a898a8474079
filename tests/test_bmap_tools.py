"""python -m bmap_tools: what it maps is where the bytes are, and what it says is so.

The oracles are filefrag, the bytes of the image, and the status of the files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bmap_tools
from bmap_tools import __main__ as program
from bmap_tools import contents, inspection, plot, progress, walk
from bmap_tools.fiemap import Fiemap

from .devices import Disk, disk, loop_device, mounted, require, run
from .test_device import as_nobody, set_flags
from .test_fiemap import filefrag, fragment

SIZES = (0, 1, 511, 512, 513, 4095, 4096, 4097, 131_071, 131_073, (3 << 20) + 17)
CODE = Path(bmap_tools.__file__).parent.parent


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Disk]:
    require("filefrag")
    with disk(tmp_path_factory.mktemp("disk"), request.param) as disk_made:
        yield disk_made


@pytest.fixture(scope="module")
def ext4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    require("filefrag")
    with disk(tmp_path_factory.mktemp("ext4"), "ext4") as disk_made:
        yield disk_made


@pytest.fixture
def root(made: Disk) -> Iterator[Path]:
    """A new directory on the file system."""
    yield from new_root(made)


@pytest.fixture
def ext4_root(ext4: Disk) -> Iterator[Path]:
    yield from new_root(ext4)


def new_root(made: Disk) -> Iterator[Path]:
    path = made.mount / "root"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bmap(tmp_path: Path) -> Path:
    return tmp_path / "bmap.json"


def tool(*arguments: object) -> int:
    """The exit status, also where argparse ends the program."""
    try:
        return program.main(
            [os.fspath(part) if isinstance(part, Path) else str(part) for part in arguments]
        )
    except SystemExit as stop:
        return int(stop.code or 0)


def fill(root: Path, sizes: tuple[int, ...] = (700, 0, 4096, 9000), classes: int = 2) -> list[Path]:
    generator = np.random.default_rng(1)
    paths = []
    for number, size in enumerate(sizes):
        path = root / f"c{number % classes}" / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(generator.bytes(size))
        paths.append(path)
    return paths


def load(bmap: Path) -> dict[str, Any]:
    """The map as any JSON reader sees it."""
    content = json.loads(bmap.read_text("ascii"))
    assert isinstance(content, dict)
    return content


def entries(bmap: Path) -> dict[str, list[Any]]:
    """Path -> what else is in its row."""
    return {path: rest for path, *rest in load(bmap)["files"]}


def through_the_image(made: Disk, bmap: Path, path: str) -> bytes:
    """A file's bytes as its extents find them in the image of the whole disk."""
    os.sync()
    size, *_, extents = entries(bmap)[path]
    content = bytearray(-(-size // 4096) * 4096)
    with open(made.image, "rb") as image:
        for logical, physical, length in extents:
            if physical is not None:
                image.seek(load(bmap)["device"]["start"] + physical)
                content[logical : logical + length] = image.read(length)
    return bytes(content[:size])


def complaints(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said


def settle() -> None:
    """Let what was written become older than a tick of the kernel's clock."""
    time.sleep(0.06)


# create


def test_a_map_says_of_each_file_what_it_is_and_where(made: Disk, root: Path, bmap: Path) -> None:
    paths = fill(root, SIZES, classes=3)
    assert tool("create", root, "-o", bmap) == 0
    content = load(bmap)
    assert (content["format"], content["version"], content["root"]) == ("bmap", 1, str(root))
    assert content["directories"] == ["c0", "c1", "c2"]
    assert content["device"]["path"] == made.device
    assert content["device"]["backing_file"] == str(made.image)
    assert content["file_system"]["uuid"] == run(
        "blkid", "-p", "-o", "value", "-s", "UUID", made.device
    )
    files = entries(bmap)
    assert len(files) == len(paths)
    for path in paths:
        name = str(path.relative_to(root))
        status = path.stat()
        assert files[name][:4] == [
            status.st_size,
            status.st_ino,
            status.st_mtime_ns,
            status.st_ctime_ns,
        ]
        assert through_the_image(made, bmap, name) == path.read_bytes()
        assert sum(extent[2] for extent in files[name][4]) >= status.st_size


def test_extents_are_filefrags(made: Disk, root: Path, bmap: Path) -> None:
    fragment(root / "many", 200)
    assert tool("create", root, "-o", bmap) == 0
    expected = [list(row[:3]) for row in filefrag(root / "many")]
    assert entries(bmap)["many"][4] == expected
    assert len(expected) >= 200
    assert through_the_image(made, bmap, "many") == (root / "many").read_bytes()


def test_holes_and_reserved_space_read_as_zeros(made: Disk, root: Path, bmap: Path) -> None:
    for name, first, last in (("leading", 9, 10), ("middle", 0, 30), ("trailing", 0, 1)):
        with open(root / name, "wb") as file:
            for block in (first, last):
                file.seek(block * 4096)
                file.write(os.urandom(4096))
            file.truncate(40 * 4096 + 1)
    (root / "hole").touch()
    os.truncate(root / "hole", 1 << 30)
    assert tool("create", root, "-o", bmap) == 0
    files = entries(bmap)
    assert files["hole"][4] == []
    assert files["leading"][4][0][0] == 9 * 4096
    for name in ("leading", "middle", "trailing"):
        assert through_the_image(made, bmap, name) == (root / name).read_bytes()


def test_reserved_space_on_old_data_is_unwritten(made: Disk, root: Path, bmap: Path) -> None:
    (root / "old").write_bytes(b"secret" * 100_000)
    os.sync()
    (root / "old").unlink()
    with open(root / "reserved", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 600_000)
    with open(root / "beyond", "wb") as file:
        file.write(b"x" * 5000)
    run("fallocate", "--keep-size", "--length", "4MiB", str(root / "beyond"))
    assert tool("create", root, "-o", bmap) == 0
    files = entries(bmap)
    assert {extent[1] for extent in files["reserved"][4]} == {None}
    assert sum(extent[2] for extent in files["reserved"][4]) >= 600_000
    block = load(bmap)["file_system"]["block_size"]
    end = -(-5000 // block) * block
    written, *reserved = files["beyond"][4]
    assert written[::2] == [0, end]
    assert reserved == [[end, None, (4 << 20) - end]]
    assert through_the_image(made, bmap, "beyond") == b"x" * 5000


@pytest.mark.parametrize(("file_system", "sector"), [("ext4", 512), ("xfs", 4096)])
def test_on_a_partition_the_start_is_in_the_map(
    tmp_path: Path, bmap: Path, file_system: str, sector: int
) -> None:
    with disk(tmp_path, file_system, sector=sector, partition=True) as made:
        paths = fill(made.mount / ".", (5000, 70_000))
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        content = load(bmap)
        assert content["device"]["start"] == 1 << 20
        assert content["device"]["logical_block_size"] == sector
        for path in paths:
            name = str(path.relative_to(made.mount))
            assert through_the_image(made, bmap, name) == path.read_bytes()
        assert tool("verify", bmap, "--bytes") == 0
        for uri in (made.device, made.disk, made.image):
            assert tool("verify", bmap, "--bytes", "--uri", uri) == 0


def test_reflinks_share_their_extents(tmp_path: Path, bmap: Path) -> None:
    with disk(tmp_path, "xfs") as made:
        (made.mount / "file").write_bytes(os.urandom(100_000))
        run("cp", "--reflink=always", str(made.mount / "file"), str(made.mount / "copy"))
        assert tool("create", made.mount, "-o", bmap) == 0
        files = entries(bmap)
        assert files["copy"][4] == files["file"][4] != []
        assert through_the_image(made, bmap, "copy") == (made.mount / "file").read_bytes()


def test_the_order_is_by_class_then_by_name(root: Path, bmap: Path) -> None:
    for name in ("b/z", "b/deep/a", "b/deep/er/a", "b/a", "a-b/x", "a/x", "z.txt", "A", "é/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    (root / "empty").mkdir()
    assert tool("create", root, "-o", bmap) == 0
    assert load(bmap)["directories"] == ["a", "a-b", "b", "empty", "é"]
    assert list(entries(bmap)) == [
        "A",
        "z.txt",
        "a/x",
        "a-b/x",
        "b/a",
        "b/z",
        "b/deep/a",
        "b/deep/er/a",
        "é/x",
    ]


def test_names_may_be_any_bytes(root: Path, bmap: Path) -> None:
    names = [b"a b", b"new\nline", b"\xff\xfe", "\u00fc".encode(), b"quote\"'", b"-o"]
    for name in names:
        directory = os.path.join(os.fsencode(root), b"c " + name)
        os.mkdir(directory)
        with open(os.path.join(directory, name), "wb") as file:
            file.write(name)
    assert tool("create", root, "-o", bmap) == 0
    expected = sorted(b"c " + name + b"/" + name for name in names)
    assert [os.fsencode(name) for name in entries(bmap)] == expected
    assert tool("verify", bmap, "--bytes") == 0


def test_links_are_followed_and_circles_are_not(root: Path, tmp_path: Path, bmap: Path) -> None:
    (root / "a" / "deep").mkdir(parents=True)
    (root / "a" / "file").write_bytes(os.urandom(5000))
    (root / "a" / "deep" / "file").write_bytes(b"deep")
    (root / "link-to-class").symlink_to("a")
    (root / "self").symlink_to(".")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "deep" / "up").symlink_to("../../a")
    (root / "a" / "link").symlink_to("file")
    os.link(root / "a" / "file", root / "a" / "hard")
    assert tool("create", root, "-o", bmap) == 0
    assert load(bmap)["directories"] == ["a", "link-to-class", "self"]
    files = entries(bmap)
    assert set(files) >= {
        *("a/file", "a/link", "a/hard", "a/deep/file"),
        *("link-to-class/file", "link-to-class/deep/file", "self/a/file"),
    }
    assert files["a/link"] == files["a/hard"] == files["a/file"] == files["link-to-class/file"]
    assert files["a/file"][0] == 5000
    assert not any(re.search("up/up|self/self|up/a/up", name) for name in files)
    assert tool("verify", bmap, "--bytes") == 0


def test_a_class_that_is_a_link_to_the_root_has_the_roots_files(root: Path, bmap: Path) -> None:
    (root / "loose.jpg").write_bytes(b"x")
    (root / "self").symlink_to(root)
    assert tool("create", root, "-o", bmap) == 0
    assert list(entries(bmap)) == ["loose.jpg", "self/loose.jpg"]


def test_the_map_itself_is_not_in_the_map(root: Path) -> None:
    fill(root)
    for _ in range(2):  # the second time it is there already
        assert tool("create", root, "-o", root / "bmap.json") == 0
        assert "bmap.json" not in entries(root / "bmap.json")
    assert tool("verify", root / "bmap.json") == 0


def test_any_number_of_threads_makes_the_same_map(root: Path, tmp_path: Path) -> None:
    fill(root, (100,) * 1400, classes=5)
    (root / "c3" / "zz").symlink_to("nowhere")
    settle()
    files = []
    for threads in (1, 3, 16):
        assert tool("create", root, "-o", tmp_path / "map", "--threads", threads) == 1
        files.append(load(tmp_path / "map")["files"])
    assert files[0] == files[1] == files[2]
    assert len(files[0]) == 1401
    assert [path for path, *_, extents in files[0] if isinstance(extents, str)] == ["c3/zz"]


def test_the_time_of_the_last_access_stays(root: Path, bmap: Path) -> None:
    (path,) = fill(root, (5000,))
    os.utime(path, ns=(1, path.stat().st_mtime_ns))
    assert tool("create", root, "-o", bmap) == 0
    assert tool("verify", bmap) == 0
    assert path.stat().st_atime_ns == 1


# create: what is not mapped


def test_what_cannot_be_mapped_is_listed_and_marked(
    root: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(root, (5000, 5000))
    os.mkfifo(root / ".fifo")
    (root / "c0" / "fifo").symlink_to("../.fifo")
    (root / "c0" / "dangling").symlink_to("nowhere")
    (root / "c0" / "circle").symlink_to("circle")
    (root / "c1" / "device").symlink_to("/dev/null")
    assert tool("create", root, "-o", bmap) == 1
    files = entries(bmap)
    reasons = {name: rest[4] for name, rest in files.items() if isinstance(rest[4], str)}
    assert reasons == {
        "c0/fifo": "it is not a regular file",
        "c0/dangling": "No such file or directory",
        "c0/circle": "Too many levels of symbolic links",
        "c1/device": "it is not a regular file",
    }
    assert files["c0/fifo"][1] == (root / ".fifo").stat().st_ino
    assert files["c0/dangling"][:4] == [0, 0, 0, 0]
    assert len(files["c0/00.jpg"][4]) == 1
    said = complaints(capsys)
    assert "4 of 6 files are not mapped" in said
    assert all(f"  {name}: {why}\n" in said for name, why in reasons.items())
    assert tool("verify", bmap) == 0  # they are as the map says
    assert tool("verify", bmap, "--bytes") == 0


def test_fifos_sockets_and_devices_are_no_samples(
    root: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = fill(root, (5000,))
    os.mkfifo(path.parent / "fifo")
    os.mknod(path.parent / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    os.mknod(path.parent / "block", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(root):
        server.bind("socket")
    settle()
    assert tool("create", root, "-o", bmap) == 0
    assert list(entries(bmap)) == ["c0/00.jpg"]
    said = complaints(capsys)
    assert not any(words in said for words in ("c0/", "  socket", "not mapped"))
    assert tool("verify", bmap) == 0


def test_a_writer_that_waits_at_a_fifo_is_not_woken(ext4_root: Path, bmap: Path) -> None:
    os.mkfifo(ext4_root / "fifo")
    (ext4_root / "link").symlink_to("fifo")
    woken = threading.Event()

    def write() -> None:
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
    writer.join(10)
    assert woken.is_set()


def test_of_many_the_first_twenty_are_listed(
    ext4_root: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(33):
        (ext4_root / f"{number:02d}\n").symlink_to("nowhere")
    assert tool("create", ext4_root, "-o", bmap) == 1
    lines = complaints(capsys).splitlines()
    listed = [line for line in lines if line.startswith("  b'")]
    assert listed == [f"  b'{number:02d}\\n': No such file or directory" for number in range(20)]
    assert "  and 13 more" in lines


@pytest.fixture
def public(made: Disk) -> Iterator[Path]:
    """A directory of the file system that other users can come to."""
    with tempfile.TemporaryDirectory(prefix="bmap-tools-") as directory:
        os.chmod(directory, 0o755)
        with mounted(made.device, Path(directory) / "mnt"):
            path = Path(directory) / "mnt" / "public"
            path.mkdir()
            (path / "out").mkdir()
            (path / "out").chmod(0o777)
            # Nobody may not read Python's own modules where they are in a home directory.
            (path / "warm-up").touch()
            tool("create", path, "-o", path / "out" / "bmap.json")
            tool("verify", path / "out" / "bmap.json", "--bytes")
            (path / "warm-up").unlink()
            (path / "out" / "bmap.json").unlink()
            yield path
            shutil.rmtree(path)


def test_what_may_not_be_read_cannot_be_verified(
    public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(public, (5000, 5000))
    for name, size in (("secret", 5000), ("hole", 0)):
        (public / name).write_bytes(b"x" * size)
        (public / name).chmod(0)
    bmap = public / "out" / "bmap.json"
    assert tool("create", public, "-o", bmap) == 0
    capsys.readouterr()
    with as_nobody():
        assert tool("verify", bmap) == 1
    said = complaints(capsys)
    assert "2 of 4 files are not as mapped" in said
    for name in ("secret", "hole"):
        assert f"  {name}: extents: Permission denied\n" in said


def test_what_may_not_be_read_is_not_mapped(
    public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(public, (5000, 5000))
    (public / "c0" / "secret").write_bytes(b"x" * 77)
    (public / "c0" / "secret").chmod(0)
    bmap = public / "out" / "bmap.json"
    with as_nobody():
        assert tool("create", public, "-o", public / "bmap.json") == 2
        assert "bmap.json cannot be written: no permission" in complaints(capsys)
        status = tool("create", public, "-o", bmap)
        verified = tool("verify", bmap)
    assert (status, verified) == (1, 0)
    files = entries(bmap)
    assert list(files) == ["c0/00.jpg", "c0/secret", "c1/01.jpg"]
    assert files["c0/secret"][::4] == [77, "Permission denied"]
    assert len(files["c0/00.jpg"][4]) == 1
    assert load(bmap)["directories"] == ["c0", "c1", "out"]
    assert "  c0/secret: Permission denied\n" in complaints(capsys)


def test_without_a_directory_that_may_not_be_listed_there_is_no_map(
    public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(public, (5000, 5000))
    (public / "closed").mkdir(mode=0)
    (public / "c1" / "deep").mkdir()
    (public / "c1").chmod(0o744)  # it may be listed, but nothing in it be looked at
    bmap = public / "out" / "bmap.json"
    bmap.write_text("the old one")
    bmap.chmod(0o666)
    capsys.readouterr()
    with as_nobody():
        assert tool("create", public, "-o", bmap) == 2
    said = complaints(capsys)
    denied = "  c1/deep/: Permission denied\n  closed/: Permission denied\n"
    assert f"these directories could not be listed:\n{denied}bmap_tools: nothing was wri" in said
    assert bmap.read_text() == "the old one"
    assert [path.name for path in bmap.parent.iterdir()] == ["bmap.json"]


def test_nobody_may_not_compare_bytes_and_is_told_what_helps(
    public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(public)
    bmap = public / "out" / "bmap.json"
    with as_nobody():
        assert tool("create", public, "-o", bmap) == 0
        assert tool("verify", bmap) == 0
        assert tool("verify", bmap, "--bytes") == 2
    assert "may not be read: be root or in the group that owns it, or give --uri" in (
        complaints(capsys)
    )


def test_another_file_system_below_the_root_is_not_mapped(
    ext4_root: Path, tmp_path: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(ext4_root, (5000,))
    with disk(tmp_path, "xfs") as other:
        (other.mount / "file").write_bytes(b"x" * 5000)
        (ext4_root / "linked").symlink_to(other.mount)
        with mounted(other.device, ext4_root / "mounted"):
            assert tool("create", ext4_root, "-o", bmap) == 1
            assert tool("verify", bmap) == 0
        files = entries(bmap)
        (ext4_root / "mounted").rmdir()
    for name in ("linked/file", "mounted/file"):
        assert files[name][::4] == [5000, "it is on another file system"]
    assert len(files["c0/00.jpg"][4]) == 1
    assert "mounted/file: it is on another file system" in complaints(capsys)


def test_data_in_the_inode_or_the_journal_is_not_mapped(tmp_path: Path, bmap: Path) -> None:
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
        assert files["journaled"][4] == "new data of it goes to the journal first (chattr +j)"
        assert files["empty"][4] == []
        assert through_the_image(made, bmap, "plain") == b"x" * 50_000


def test_a_time_that_no_map_can_say_is_no_crash(root: Path, bmap: Path) -> None:
    (root / "late").write_bytes(b"x")
    run("touch", "-d", "2400-01-01", str(root / "late"))
    if (root / "late").stat().st_mtime_ns < 2**63:
        pytest.skip("the file system has no time stamps beyond the year 2262")
    assert tool("create", root, "-o", bmap) == 1
    assert "2262" in entries(bmap)["late"][4]
    assert tool("verify", bmap) == 0


def test_a_file_whose_extents_cannot_be_read_is_not_mapped(
    root: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(root, (5000, 6000))

    def broken(self: Fiemap, fd: int, *, sync: bool = True) -> Any:
        if os.fstat(fd).st_size == 6000:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, fd, sync=sync)

    real = Fiemap.raw_extents
    monkeypatch.setattr(Fiemap, "raw_extents", broken)
    assert tool("create", root, "-o", bmap) == 1
    files = entries(bmap)
    assert files["c1/01.jpg"][::4] == [6000, "Input/output error"]
    assert len(files["c0/00.jpg"][4]) == 1


# create: files that change meanwhile


def test_a_file_that_changed_a_moment_ago_is_looked_at_again(
    ext4_root: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "TICK_NS", 400_000_000)  # this test may be held up
    (ext4_root / "old").write_bytes(b"x")
    time.sleep(0.45)
    (ext4_root / "fresh").write_bytes(b"x")
    looked = spy(monkeypatch, lambda fd, count: None)
    assert tool("create", ext4_root, "-o", bmap) == 0
    assert looked.count((ext4_root / "old").stat().st_ino) == 1
    assert looked.count((ext4_root / "fresh").stat().st_ino) >= 2


def test_where_time_stamps_are_whole_seconds_a_map_waits_for_the_next_one(
    tmp_path: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk(tmp_path, "ext4", size=32 << 20, mkfs=("-I", "128")) as made:
        paths = fill(made.mount, (5000, 5000, 5000))
        time.sleep(max(0, 1.02 - time.time() % 1))  # the second has just begun: the longest wait
        for path in paths:
            path.write_bytes(b"x" * 5000)
        looked = spy(monkeypatch, lambda fd, count: None)
        assert tool("create", made.mount, "-o", bmap) == 0
        created = time.time()
        for path in paths:
            rewrite(path)
            status, row = path.stat(), entries(bmap)[str(path.relative_to(made.mount))]
            assert row[3] % 10**9 == 0  # or it would be the other test once more
            assert row[3] // 10**9 < int(created)
            assert [status.st_size, status.st_ino] == row[:2]
            assert [status.st_mtime_ns, status.st_ctime_ns] != row[2:4]
            assert looked.count(status.st_ino) <= 2  # one wait is enough
        assert tool("verify", bmap) == 1


def test_a_file_that_changes_once_while_it_is_mapped_is_mapped_as_it_became(
    made: Disk, root: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = fill(root, (5000, 6000, 7000))
    settle()

    def change(fd: int, count: int) -> None:
        if count == 1 and os.fstat(fd).st_ino == inode:
            settle()  # to have data written may take long
            with open(paths[1], "ab") as file:
                file.write(os.urandom(100_000))

    inode = paths[1].stat().st_ino
    spy(monkeypatch, change)
    assert tool("create", root, "-o", bmap) == 0
    assert entries(bmap)["c1/01.jpg"][0] == 106_000
    for path in paths:
        name = str(path.relative_to(root))
        assert through_the_image(made, bmap, name) == path.read_bytes()
    assert tool("verify", bmap) == 0


def test_a_file_that_never_rests_is_not_mapped(
    root: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = fill(root, (5000, 6000, 7000))
    settle()
    inode = paths[2].stat().st_ino

    def change(fd: int, count: int) -> None:
        if os.fstat(fd).st_ino == inode:
            with open(paths[2], "ab") as file:
                file.write(b"more")

    spy(monkeypatch, change)
    assert tool("create", root, "-o", bmap) == 1
    files = entries(bmap)
    assert files["c0/02.jpg"][4] == "it kept changing while it was mapped"
    assert [len(files[name][4]) for name in ("c0/00.jpg", "c1/01.jpg")] == [1, 1]
    assert "c0/02.jpg: it kept changing while it was mapped" in complaints(capsys)


def spy(monkeypatch: pytest.MonkeyPatch, then: Callable[[int, int], None]) -> list[int]:
    """The inodes that are asked for their extents; `then(fd, how often)` comes after the answer."""
    looked: list[int] = []
    real = Fiemap.raw_extents

    def raw_extents(self: Fiemap, fd: int, *, sync: bool = True) -> Any:
        assert sync
        found = real(self, fd, sync=sync)
        looked.append(os.fstat(fd).st_ino)
        then(fd, looked.count(looked[-1]))
        return found

    monkeypatch.setattr(Fiemap, "raw_extents", raw_extents)
    return looked


def test_a_file_that_vanishes_is_not_mapped(
    root: Path, bmap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = fill(root, (5000, 6000))
    found = walk.walk(os.fsencode(root))
    paths[0].unlink()
    shutil.rmtree(paths[1].parent)
    monkeypatch.setattr(walk, "walk", lambda root, without: found)
    assert tool("create", root, "-o", bmap) == 1
    assert {rest[4] for rest in entries(bmap).values()} == {"No such file or directory"}


@pytest.mark.parametrize(
    ("module", "function", "seconds"),
    [("inspection", "mapped", 0.003), ("extent_map", "lines", 20)],
    ids=["while files are mapped", "while the map is written"],
)
def test_ctrl_c_leaves_nothing_behind(
    ext4_root: Path, tmp_path: Path, module: str, function: str, seconds: float
) -> None:
    fill(ext4_root, (100,) * 1500)
    (tmp_path / "bmap.json").write_text("the old one")
    script = (
        f"import sys, time, bmap_tools.{module} as module\n"
        "from bmap_tools.__main__ import main\n"
        f"real = module.{function}\n"
        "def slowly(*arguments):\n"
        "    print('at work', flush=True)\n"
        f"    time.sleep({seconds})\n"
        "    return real(*arguments)\n"
        f"module.{function} = slowly\n"
        "sys.exit(main())\n"
    )
    with subprocess.Popen(
        # A shell that starts a command in the background has it ignore SIGINT; env mends that.
        [
            *("env", "--default-signal=INT", sys.executable, "-c", script),
            *("create", str(ext4_root), "-o", str(tmp_path / "bmap.json"), "--threads", "1"),
        ],
        cwd=CODE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        work, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert work.count("at work") < 800
    assert said.endswith("bmap_tools: interrupted\n")
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["bmap.json"]
    assert (tmp_path / "bmap.json").read_text() == "the old one"


# create: what cannot be done


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that is said when a command can do nothing."""
    assert tool(*arguments) == 2
    said = [line for line in complaints(capsys).splitlines() if not line.startswith("  ")]
    assert said[-1].startswith("bmap_tools: ")
    return said[-1]


def test_a_root_that_cannot_be_mapped_is_said(
    root: Path, tmp_path: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "file").touch()
    (root / "empty").mkdir()
    assert "missing: No such file" in refused(capsys, "create", root / "missing", "-o", bmap)
    assert "file: Not a directory" in refused(capsys, "create", root / "file", "-o", bmap)
    assert f"no files below {root}/empty" in refused(capsys, "create", root / "empty", "-o", bmap)
    run("mount", "-t", "tmpfs", "none", str(root / "empty"))
    try:
        (root / "empty" / "file").touch()
        assert "tmpfs lives in memory" in refused(capsys, "create", root / "empty", "-o", bmap)
    finally:
        run("umount", str(root / "empty"))
    assert not bmap.exists()


def test_an_output_that_cannot_be_written_is_said_before_the_work(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(root)
    for output, reason in (
        (tmp_path, "is there and is no file"),
        ("/dev/null", "is there and is no file"),
        (tmp_path / "no" / "bmap.json", f"there is no directory {tmp_path}/no"),
    ):
        said = refused(capsys, "create", root, "-o", output)
        assert reason in said
        assert str(output) in said
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("create",),
        ("create", "root"),
        ("create", "root", "-o", "x", "--threads", "0"),
        ("verify", "x", "--sample", "0"),
        ("verify", "x", "--sample", "many"),
        ("nonsense",),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    assert tool(*arguments) == 2


@pytest.mark.parametrize("command", ["verify", "show"])
def test_what_is_no_map_is_refused(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text('{"format": "tiff"}')
    assert f"{tmp_path}/x.json: " in refused(capsys, command, tmp_path / "x.json")
    assert "y.json: No such file" in refused(capsys, command, tmp_path / "y.json")


# create --legacy


def sectors(path: Path) -> dict[str, int]:
    """As the prototype wrote the first extent."""
    first = filefrag(path)[0]
    return {"startblock": first[1] // 512, "endblock": (first[1] + first[2]) // 512 - 1}


@pytest.mark.parametrize("prefix", ["", "../train/", "ABSOLUTE/", "./", "/elsewhere/data/"])
def test_a_legacy_map_is_imported_whatever_stands_before_its_paths(
    root: Path, tmp_path: Path, bmap: Path, prefix: str
) -> None:
    paths = fill(root, (5000, 700, 90_000, 4096))
    (root / "c9").mkdir()
    os.sync()
    settle()
    prefix = prefix.replace("ABSOLUTE", str(root))
    old = {f"{prefix}{path.relative_to(root)}": sectors(path) for path in reversed(paths)}
    (tmp_path / "old.json").write_text(json.dumps(old | {"": {}}))
    assert tool("create", root, "-o", bmap, "--legacy", tmp_path / "old.json") == 0
    assert tool("create", root, "-o", tmp_path / "new.json") == 0
    imported, new = load(bmap), load(tmp_path / "new.json")
    assert {**imported, "created": ""} == {**new, "created": ""}
    assert imported["files"][0][1] == 5000


def test_a_legacy_map_of_one_class_keeps_its_class(root: Path, tmp_path: Path, bmap: Path) -> None:
    paths = fill(root, (5000, 700), classes=1)
    old = {f"../{root.name}/c0/{path.name}": sectors(path) for path in paths}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert tool("create", root, "-o", bmap, "--legacy", tmp_path / "old.json") == 0
    assert list(entries(bmap)) == ["c0/00.jpg", "c0/01.jpg"]


def test_the_prefix_of_a_legacy_map_is_the_one_that_fits_most_files(
    root: Path, tmp_path: Path, bmap: Path
) -> None:
    paths = fill(root, (5000, 700, 3000), classes=1)
    (root / "train" / "c0").mkdir(parents=True)
    shutil.copy(paths[0], root / "train" / "c0")
    old = {f"train/c0/{path.name}": sectors(path) for path in paths}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert tool("create", root, "-o", bmap, "--legacy", tmp_path / "old.json") == 0
    assert list(entries(bmap)) == ["c0/00.jpg", "c0/01.jpg", "c0/02.jpg"]


def test_a_legacy_map_that_is_wrong_is_refused_by_name(
    root: Path, tmp_path: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = fill(root, (5000,) * 30, classes=1)
    many = root / "c0" / "many"
    fragment(many, 30)
    with open(root / "c0" / "hole", "wb") as file:
        file.seek(1 << 20)
        file.write(b"x" * 4096)
    os.sync()
    old = {f"c0/{path.name}": sectors(path) for path in [*paths, many, root / "c0" / "hole"]}
    good = dict(old)
    paths[0].unlink()
    old["c0/01.jpg"]["startblock"] += 8
    old["c0/02.jpg"]["endblock"] -= 8
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert "without --legacy" in refused(
        capsys, "create", root, "-o", bmap, "--legacy", tmp_path / "old.json"
    )
    assert not bmap.exists()
    assert tool("create", root, "-o", bmap, "--legacy", tmp_path / "old.json") == 2
    said = complaints(capsys)
    assert "old.json is wrong about 5 of 32 files" in said
    assert "  c0/00.jpg: No such file or directory\n" in said
    assert re.search(r"  c0/01.jpg: it begins at sector (\d+), not (?!\1)\d+\n", said)
    assert re.search(r"  c0/02.jpg: it ends at sector (\d+), not (?!\1)\d+\n", said)
    assert re.search(r"  c0/many: it has \d+ extents\n", said)
    assert "  c0/hole: it has a hole" in said
    assert good.keys() == old.keys()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "no files"),
        ('{"": {}}', "no files"),
        ('{"a": {}}', "startblock"),
        ('{"": {"startblock": 1, "endblock": 2}}', "no path"),
        ('{"a\\u0000": {"startblock": 1, "endblock": 2}}', "no path"),
        ('{"\\ud800": {"startblock": 1, "endblock": 2}}', "no path"),
        ('{"a": {"startblock": 1.5, "endblock": 2}}', "whole numbers"),
        ('{"a": {"startblock": true, "endblock": 2}}', "whole numbers"),
        ('{"a": {"startblock": 3, "endblock": 2}}', "whole numbers"),
        ('{"a": {"startblock": -1, "endblock": 2}}', "whole numbers"),
        ('{"a": {"startblock": 1, "endblock": 1e99}}', "whole numbers"),
        ('{"a": {"startblock": 1, "endblock": 99999999999999999999}}', "whole numbers"),
        ('{"a": {"startblock": 1, "endblock": 2, "more": 3}}', "startblock"),
        ('{"nowhere/a": {"startblock": 1, "endblock": 2}}', "no file of .* is below"),
        ('{"../../etc/passwd": {"startblock": 1, "endblock": 2}}', "no file of .* is below"),
        ('{"format": "bmap"}', "startblock"),
    ],
)
def test_a_legacy_map_of_another_form_is_refused(
    ext4_root: Path,
    tmp_path: Path,
    bmap: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    reason: str,
) -> None:
    fill(ext4_root)
    (tmp_path / "old.json").write_text(content)
    said = refused(capsys, "create", ext4_root, "-o", bmap, "--legacy", tmp_path / "old.json")
    assert re.search(reason, said)
    assert f"{tmp_path}/old.json" in said
    assert not bmap.exists()


# verify


@pytest.fixture
def mapped(root: Path, bmap: Path) -> tuple[Path, Path]:
    """A directory with twelve files of 50,000 bytes, written to the device, and its map."""
    fill(root, (50_000,) * 12)
    os.sync()
    settle()
    assert tool("create", root, "-o", bmap) == 0
    return root, bmap


def test_what_is_as_mapped_is_said(
    mapped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    capsys.readouterr()
    assert tool("verify", bmap) == 0
    assert "12 of 12 files are as mapped" in complaints(capsys)
    assert tool("verify", bmap, "--bytes", "--root", root, "--sample", 5) == 0
    assert "5 of 12 files are as mapped" in complaints(capsys)


def rewrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"x")


def put_another(path: Path) -> None:
    shutil.copy2(path, path.with_suffix(".new"))
    os.rename(path.with_suffix(".new"), path)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (rewrite, r"mtime \d+ and not \d+, ctime \d+ and not \d+$"),
        (lambda path: os.truncate(path, 49_999), r"size 49999 and not 50000, mtime"),
        (put_another, r"inode \d+ and not \d+, ctime .*extents: they are elsewhere$"),
        (lambda path: os.utime(path), r"mtime \d+ and not \d+, ctime"),
        (lambda path: path.chmod(0o600), r"ctime \d+ and not \d+$"),
        (Path.unlink, "missing: No such file or directory$"),
        (replace_by_directory, "extents: it is not a regular file$"),
    ],
)
def test_a_changed_file_is_found(
    mapped: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path], None],
    how: str,
) -> None:
    root, bmap = mapped
    change(root / "c1" / "03.jpg")
    assert tool("verify", bmap) == 1
    said = complaints(capsys)
    assert "1 of 12 files are not as mapped" in said
    assert re.search(rf"^  c1/03\.jpg: .*{how}", said, re.MULTILINE)
    assert f"renew it: python -m bmap_tools create {root} -o {bmap}" in said


def test_a_lost_directory_is_found(
    mapped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    shutil.rmtree(root / "c1")
    assert tool("verify", bmap) == 1
    assert "6 of 12 files are not as mapped" in complaints(capsys)


@pytest.mark.parametrize(("file_system", "command"), [("ext4", "e4defrag"), ("xfs", "xfs_fsr")])
def test_defragmenting_is_found_though_it_leaves_no_trace_in_the_status(
    tmp_path: Path,
    bmap: Path,
    capsys: pytest.CaptureFixture[str],
    file_system: str,
    command: str,
) -> None:
    require(command)
    with disk(tmp_path, file_system) as made:
        path, other = made.mount / "many", made.mount / "other"
        for file in (path, other):
            fragment(file, 300)
        os.sync()
        settle()
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        before = path.stat()
        subprocess.run([command, "-v", str(path)], capture_output=True, check=False)
        after = path.stat()
        assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)
        assert tool("verify", bmap) == 1
        said = complaints(capsys)
        assert "1 of 2 files are not as mapped" in said.replace("of 3", "of 2")
        assert "  many: extents: they are elsewhere\n" in said
        assert other.exists()


def flip(image: Path, place: int) -> None:
    with open(image, "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


def test_a_byte_changed_behind_the_file_systems_back_is_found(
    mapped: tuple[Path, Path], made: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    (root / "c0" / "00.jpg").read_bytes()  # the page cache holds the right bytes
    [[_, physical, _]] = entries(bmap)["c0/00.jpg"][4]
    # In the image: the device's own page cache may hold neighbours from before the file was there.
    flip(made.image, physical + 12_345)
    assert tool("verify", bmap) == 0
    capsys.readouterr()
    assert tool("verify", bmap, "--bytes") == 1
    said = complaints(capsys)
    assert f"byte 12345 is another on the device (byte {physical + 12_345} of {made.device})" in (
        said
    )
    assert "1 of 12 files" in said


def test_the_bytes_are_those_of_the_device_that_the_files_are_on_now(
    tmp_path: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("mkfs.ext4", "losetup")
    image, copy, mount = tmp_path / "image", tmp_path / "copy", tmp_path / "mnt"
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    with loop_device(image) as old:
        run("mkfs.ext4", "-q", "-F", old)
        with mounted(old, mount):
            fill(mount, (50_000,))
            assert tool("create", mount, "-o", bmap) == 0
    [[_, physical, _]] = entries(bmap)["c0/00.jpg"][4]
    run("cp", str(image), str(copy))
    run("losetup", old, str(copy))  # the same UUID at the name that the map has
    try:
        with loop_device(image) as new, mounted(new, mount):
            assert load(bmap)["device"]["path"] == old != new
            flip(copy, physical + 77)
            assert tool("verify", bmap, "--bytes") == 0
            assert tool("verify", bmap, "--bytes", "--uri", old) == 1
            (mount / "c0" / "00.jpg").read_bytes()  # the page cache holds the right bytes
            flip(image, physical + 99)
            capsys.readouterr()
            assert tool("verify", bmap, "--bytes") == 1
            assert f"byte 99 is another on the device (byte {physical + 99} of {new})" in (
                complaints(capsys)
            )
    finally:
        run("losetup", "--detach", old)


def content_of(loaded: bmap_tools.ExtentMap, file: int) -> bytes:
    with open(os.path.join(loaded.root, loaded.name(file)), "rb") as opened:
        return opened.read()


def test_a_map_that_takes_data_for_a_hole_is_found(
    mapped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, bmap = mapped
    loaded = bmap_tools.load(bmap)
    assert len(loaded.extents) == len(loaded) == 12
    extents = loaded.extents[1:].copy()  # the first file is all hole
    extents[0, 1] = -1  # the second was never written
    loaded = replace(
        loaded, extents=extents, extent_offsets=np.maximum(loaded.extent_offsets - 1, 0)
    )
    bmap_tools.save(loaded, bmap)
    assert tool("verify", bmap) == 1
    assert complaints(capsys).count("extents: they are elsewhere") == 2
    differences = contents.compare(
        loaded, np.arange(12), loaded.root, loaded.device.path, 2, lambda done: None
    )
    assert differences.keys() == {0, 1}
    for file, why in differences.items():
        first = content_of(loaded, file).translate(None, b"\0")[0]
        place = content_of(loaded, file).index(first)
        assert why == (
            f"byte {place} is another on the device (in a hole of the map, which reads as zeros)"
        )


def test_bytes_in_holes_are_compared(root: Path, bmap: Path) -> None:
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"x" * 4096)
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
    (root / "hole").touch()
    os.truncate(root / "hole", 12_345)
    assert tool("create", root, "-o", bmap) == 0
    assert tool("verify", bmap, "--bytes") == 0


def test_a_sample_is_by_chance_and_by_its_seed(
    mapped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    for path in root.glob("*/*"):
        path.chmod(0o600)
    capsys.readouterr()
    seen = []
    for seed in (1, 1, 2, 3):
        assert tool("verify", bmap, "--sample", 4, "--seed", seed) == 1
        said = complaints(capsys)
        assert "4 of 4 files are not as mapped" in said
        seen.append(re.findall(r"c\d/\d\d\.jpg", said))
    assert seen[0] == seen[1]
    assert len({tuple(names) for names in seen}) > 1


def test_the_same_tree_on_another_device_is_not_the_maps(
    mapped: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    (tmp_path / "other").mkdir()
    with disk(tmp_path / "other", "ext4") as other:
        shutil.copytree(root, other.mount / "root")
        assert tool("verify", bmap, "--root", other.mount / "root") == 1
        said = complaints(capsys)
        assert "is not on the device of" in said
        assert re.search("UUID of the file system: .*, and not ", said)
        assert tool("verify", bmap, "--bytes", "--uri", other.device) == 2
        assert f"{other.device} does not hold the map's file system" in complaints(capsys)


def test_the_same_file_system_mounted_elsewhere_is_the_maps(
    mapped: tuple[Path, Path], made: Disk, tmp_path: Path
) -> None:
    _, bmap = mapped
    with mounted(made.device, tmp_path / "again"):
        assert tool("verify", bmap, "--root", tmp_path / "again" / "root", "--bytes") == 0


def test_a_directory_that_is_gone_or_an_image_that_is_none_is_said(
    mapped: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, bmap = mapped
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    assert "x: No such file" in refused(capsys, "verify", bmap, "--root", tmp_path / "x")
    assert "does not hold" in refused(
        capsys, "verify", bmap, "--bytes", "--uri", tmp_path / "image"
    )
    assert "y: No such file" in refused(capsys, "verify", bmap, "--bytes", "--uri", tmp_path / "y")


def test_an_image_that_ends_too_soon_is_said(
    mapped: tuple[Path, Path], made: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, bmap = mapped
    with open(made.image, "rb") as image:
        (tmp_path / "short").write_bytes(image.read(65536))
    said = refused(capsys, "verify", bmap, "--bytes", "--uri", tmp_path / "short")
    assert re.search(r"short: only 0 of \d+ bytes at \d+", said)


# show


def test_a_map_is_shown(
    mapped: tuple[Path, Path], made: Disk, capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    fragment(root / "many", 200)
    (root / "empty").mkdir()
    (root / "c0" / "dangling").symlink_to("nowhere")
    (root / "c0" / "nothing").touch()
    with open(root / "c0" / "holes", "wb") as file:
        file.truncate(1 << 20)
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
    run("fallocate", "--keep-size", "--length", "3MiB", str(root / "c0" / "00.jpg"))
    block = os.statvfs(root).f_frsize
    reserved = (3 << 20) - -(-50_000 // block) * block
    assert tool("create", root, "-o", bmap) == 1
    capsys.readouterr()
    assert tool("show", bmap) == 0
    shown = capsys.readouterr().out
    files = entries(bmap)
    counts = [
        sum(extent[0] < rest[0] for extent in rest[4])
        for rest in files.values()
        if isinstance(rest[4], list)
    ]
    total = sum(rest[0] for rest in files.values())
    assert f"device       {made.device}, {320 << 20:,} bytes, LBAs of 512 bytes" in shown
    assert f"backing      {made.image}" in shown
    assert re.search(r"classes +3\n", shown)
    assert re.search(rf"files +{len(files)}, {total:,} bytes\n", shown)
    assert re.search(rf"extents +{sum(counts):,}, ", shown)
    assert re.search(rf"unwritten +{1 << 20:,} bytes", shown)
    assert re.search(rf"holes +{1 << 20:,} bytes", shown)
    assert re.search(rf"reserved +{reserved:,} bytes", shown)
    contiguous = counts.count(1) / sum(count > 0 for count in counts)
    assert re.search(rf"contiguous +{contiguous:.1%} of the files that have extents, ", shown)
    assert re.search(r"\n +0 +1 +#+\n +1 +13 +#{40}\n", shown)
    assert re.search(r"\n +129 to 256 +1 +#+\n", shown)
    assert (
        "not mapped, to be read as files: 1\n  1: No such file or directory\n    c0/dangling"
        in (shown)
    )


def test_a_files_extents_are_shown_with_the_lbas_of_the_disk(
    tmp_path: Path, bmap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with disk(tmp_path, "ext4", sector=4096, partition=True) as made:
        path = made.mount / "file name"
        path.write_bytes(b"x" * 5000)
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 8192, 4096)
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        (_, physical, _, _), *_ = filefrag(path)
        capsys.readouterr()
        for name in ("file name", str(path)):
            assert tool("show", bmap, name) == 0
            shown = capsys.readouterr().out
            lba = ((1 << 20) + physical) // 4096
            assert re.search(rf"\n +0 +{physical} +8192  {lba} to {lba + 1}\n", shown)
            assert re.search(r"\n +8192 +unwritten +4096\n", shown)
            assert f"LBAs of {made.disk}" in shown
            assert "size    12,288 bytes" in shown


def test_a_file_that_is_not_in_the_map_or_not_mapped_is_said(
    mapped: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, bmap = mapped
    (root / "dangling").symlink_to("nowhere")
    assert tool("create", root, "-o", bmap) == 1
    capsys.readouterr()
    assert tool("show", bmap, "dangling") == 0
    assert "not mapped, to be read as a file: No such file" in capsys.readouterr().out
    for name in ("c0", "c0/00.jp", "0/00.jpg", ""):
        said = refused(capsys, "show", bmap, name)
        assert f"has no file {name}; give its path from {root}" in said


@pytest.fixture
def ext4_mapped(ext4_root: Path, bmap: Path) -> Path:
    """The map of three files in two classes and the root of ext4."""
    fill(ext4_root, (3 << 20, 2 << 20))
    (ext4_root / "loose").write_bytes(os.urandom(4 << 20))
    assert tool("create", ext4_root, "-o", bmap) == 0
    return bmap


def test_the_plot_has_the_colours_of_the_classes_where_they_lie(ext4_mapped: Path) -> None:
    loaded = bmap_tools.load(ext4_mapped)
    cells = plot._cells(loaded).ravel()
    cell_bytes = (320 << 20) / cells.size
    owner = {"c0/00.jpg": 0, "c1/01.jpg": 1, "loose": -1}
    rest = np.ones(cells.size, bool)
    for name, (*_, extents) in entries(ext4_mapped).items():
        for _, physical, length in extents:
            cover = slice(int(physical / cell_bytes), int((physical + length - 1) / cell_bytes) + 1)
            assert (cells[cover] == owner[name]).mean() > 0.9  # its neighbours may have the ends
            rest[cover] = False
    assert set(cells[rest]) == {-2}


def test_the_plot_is_a_picture(
    ext4_mapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib here: pip install matplotlib")
    from matplotlib import colormaps
    from matplotlib.image import imread

    assert tool("show", ext4_mapped, "--plot", tmp_path / "plot.png") == 0
    picture = imread(tmp_path / "plot.png")
    colours = {tuple(pixel) for pixel in np.unique(picture.reshape(-1, 4)[:, :3].round(2), axis=0)}
    for number in range(2):  # of the classes
        colour = np.array(colormaps["tab20"].resampled(2)(number)[:3], np.float32)
        assert tuple(colour.round(2)) in colours
    assert "plot.tiger: Format 'tiger'" in refused(
        capsys, "show", ext4_mapped, "--plot", tmp_path / "plot.tiger"
    )
    assert "plot.png: No such file" in refused(
        capsys, "show", ext4_mapped, "--plot", tmp_path / "no" / "plot.png"
    )


def test_without_matplotlib_it_is_said_how_to_get_it(
    mapped: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, bmap = mapped
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = refused(capsys, "show", bmap, "--plot", tmp_path / "plot.png")
    assert said == "bmap_tools: --plot needs matplotlib: pip install matplotlib"


def test_a_closed_pipe_is_no_error(mapped: tuple[Path, Path]) -> None:
    _, bmap = mapped
    command = f"{sys.executable} -m bmap_tools show {bmap} | true"
    done = subprocess.run(
        ["bash", "-c", command], cwd=CODE, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_an_output_that_knows_no_accents_is_no_crash(root: Path, bmap: Path) -> None:
    (root / "caf\u00e9").touch()
    assert tool("create", root, "-o", bmap) == 0
    done = subprocess.run(
        [sys.executable, "-m", "bmap_tools", "show", str(bmap), "caf\u00e9"],
        cwd=CODE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "caf\\xe9\n" in done.stdout


# progress


def test_progress_is_lines_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    with progress.progress("mapping", 2000) as tick:
        tick(1000)
    assert complaints(capsys) == (
        "bmap_tools: mapping: 2,000 files\nbmap_tools: mapping: 1,000 of 2,000 files\n"
    )


@pytest.mark.parametrize("rich", [True, False])
def test_progress_is_a_bar_on_a_terminal_where_rich_is(rich: bool) -> None:
    pytest.importorskip("rich", reason="no rich here: pip install rich")
    script = (
        "from bmap_tools import progress\n"
        f"if not {rich}: progress.importlib.util.find_spec = lambda name: None\n"
        "progress._BAR_SECONDS = 0.0\n"
        "with progress.progress('mapping', 2000) as tick:\n"
        "    tick(1000)\n"
    )
    terminal, slave = os.openpty()
    done = subprocess.run([sys.executable, "-c", script], stderr=slave, cwd=CODE, check=False)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError), open(terminal, "rb", buffering=0) as file:
        while part := file.read(4096):  # until EIO
            shown += part
    assert done.returncode == 0
    assert (b"1000/2000" in shown) == rich
    assert b"mapping" in shown


def test_the_program_runs_by_its_module_name(mapped: tuple[Path, Path]) -> None:
    _, bmap = mapped
    done = subprocess.run(
        [sys.executable, "-m", "bmap_tools", "verify", str(bmap)],
        cwd=CODE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "12 of 12 files are as mapped" in done.stderr
