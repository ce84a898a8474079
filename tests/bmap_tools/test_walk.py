"""Which files a map lists, and in which order."""

import contextlib
import os
import re
import socket
import stat

from tests.kit.bmap.command import entries, fill, load, says, settle, tool


def test_the_order_is_by_class_then_by_name(root, bmap):
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


def test_links_are_followed_and_circles_are_not(root, tmp_path, bmap):
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


def test_fifos_sockets_and_devices_are_not_samples(root, bmap):
    (path,) = fill(root, (5000,))
    os.mkfifo(path.parent / "fifo")
    os.mknod(path.parent / "zero", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    os.mknod(path.parent / "block", stat.S_IFBLK | 0o600, os.makedev(7, 0))
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(root):
        server.bind("socket")
    settle()
    said = says(0, "create", root, "-o", bmap)
    assert list(entries(bmap)) == ["c0/00.jpg"]
    assert not any(words in said for words in ("c0/", "  socket", "not mapped"))
    assert tool("verify", bmap) == 0
