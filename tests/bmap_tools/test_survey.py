"""Many files at once, some of which change in the meantime."""

import os
import shutil
import time
from types import SimpleNamespace

import pytest

from bmap_tools import fiemap, inspection, survey, walk
from tests.kit.bmap.command import (
    entries,
    fill,
    load,
    rewrite,
    says,
    settle,
    through_the_image,
    tool,
)
from tests.kit.devices import disk


def test_create_makes_the_same_map_with_any_number_of_threads(root, tmp_path):
    fill(root, (100,) * 1400, classes=5)  # of several tasks
    (root / "c3" / "zz").symlink_to("nowhere")
    settle()
    files = []
    for threads in (1, 3, 16):
        assert tool("create", root, "-o", tmp_path / "map", "--threads", threads) == 1
        files.append(load(tmp_path / "map")["files"])
    assert files[0] == files[1] == files[2]
    assert len(files[0]) == 1401
    assert [path for path, *_, extents in files[0] if isinstance(extents, str)] == ["c3/zz"]


def test_a_file_that_changed_a_moment_ago_is_inspected_again(ext4_root, bmap, monkeypatch):
    (ext4_root / "old").write_bytes(b"x")
    settle()
    (ext4_root / "fresh").write_bytes(b"x")
    now = (ext4_root / "fresh").stat().st_ctime_ns + inspection.TICK_NS // 5
    slept = []
    clock = SimpleNamespace(time_ns=lambda: now + int(sum(slept) * 1e9), sleep=slept.append)
    monkeypatch.setattr(inspection, "time", clock)
    monkeypatch.setattr(survey, "time", clock)
    looked = spy(monkeypatch, lambda fd, count: None)
    assert tool("create", ext4_root, "-o", bmap) == 0
    assert looked.count((ext4_root / "old").stat().st_ino) == 1
    assert looked.count((ext4_root / "fresh").stat().st_ino) == 2
    assert slept == [inspection.TICK_NS / 1e9]


@pytest.mark.long
def test_create_waits_for_the_next_second_where_time_stamps_are_whole_seconds(
    tmp_path, bmap, monkeypatch
):
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
    made, root, bmap, monkeypatch
):
    paths = fill(root, (5000, 6000, 7000))
    settle()

    def change(fd, count):
        if count == 1 and os.fstat(fd).st_ino == inode:
            settle()  # to have data written may take long
            with open(paths[1], "ab") as file:
                file.write(os.urandom(100_000))

    inode = paths[1].stat().st_ino
    spy(monkeypatch, change)
    assert tool("create", root, "-o", bmap) == 0
    assert entries(bmap)["c1/01.jpg"][0] == 106_000
    found = through_the_image(made, bmap)
    assert found == {str(path.relative_to(root)): path.read_bytes() for path in paths}
    assert tool("verify", bmap) == 0


def test_a_file_that_never_rests_is_not_mapped(root, bmap, monkeypatch):
    paths = fill(root, (5000, 6000, 7000))
    settle()
    inode = paths[2].stat().st_ino

    def change(fd, count):
        if os.fstat(fd).st_ino == inode:
            with open(paths[2], "ab") as file:
                file.write(b"more")

    spy(monkeypatch, change)
    said = says(1, "create", root, "-o", bmap)
    files = entries(bmap)
    assert files["c0/02.jpg"][4] == "it kept changing while it was mapped"
    assert [len(files[name][4]) for name in ("c0/00.jpg", "c1/01.jpg")] == [1, 1]
    assert "c0/02.jpg: it kept changing while it was mapped" in said


def spy(monkeypatch, then):
    """The inodes whose extents are read; `then(fd, how often)` is called after each time."""
    looked = []
    real = fiemap.raw_extents

    def raw_extents(fd, *, sync=True):
        assert sync
        found = real(fd, sync=sync)
        looked.append(os.fstat(fd).st_ino)
        then(fd, looked.count(looked[-1]))
        return found

    monkeypatch.setattr(fiemap, "raw_extents", raw_extents)
    return looked


def test_a_file_that_vanishes_is_not_mapped(root, bmap, monkeypatch):
    paths = fill(root, (5000, 6000))
    found = walk.walk(os.fsencode(root))
    paths[0].unlink()
    shutil.rmtree(paths[1].parent)
    monkeypatch.setattr(walk, "walk", lambda root, without: found)
    assert tool("create", root, "-o", bmap) == 1
    assert {rest[4] for rest in entries(bmap).values()} == {"No such file or directory"}
