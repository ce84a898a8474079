"""Files of a file system whose superblock is read-only, until somebody can write to it again."""

import math
import os
from contextlib import contextmanager

import numpy as np
import pytest

from bmap_tools import create
from dali_storage.backends.extents import read_only
from dali_storage.backends.extents.freshness import Freshness
from dali_storage.backends.linux import aio
from dali_storage.contract.errors import StaleMapError
from dali_storage.samples.discovery import from_directory, from_files
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import disk, mounted, run
from tests.kit.layouts import defragment, write_interleaved
from tests.kit.mapped import NEEDS_ROOT, Mapped, nothing_stays_open
from tests.kit.process import status_of_fork, wait_until

pytestmark = NEEDS_ROOT

CONTENTS = [name * 10_000 for name in (b"a", b"b", b"c")]
WRITE = "printf new | dd status=none conv=notrunc of={0}/class/b"
THERE_AND_BACK = "mount -o remount,rw {0}; " + WRITE + "; mount -o remount,ro {0}"
TOUCH = "mount -o remount,rw {0}; touch -d 1999-01-01 {0}/class/b"
SPACES = {"here": (), "in another namespace": ("unshare", "-m", "--propagation", "private")}


def shell(script, made, space="here"):
    run(*SPACES[space], "sh", "-ec", script.format(made.mount, made.device))


@contextmanager
def mapped_read_only(tmp_path, kind="ext4"):
    """A disk, read-only since it was mapped: `CONTENTS`, a link to elsewhere, and 20 extents."""
    (tmp_path / "root").symlink_to("mnt")
    with disk(tmp_path, kind, size=(64 if kind == "ext4" else 320) << 20) as made:
        folder = made.mount / "class"
        folder.mkdir()
        for content in CONTENTS:
            (folder / chr(content[0])).write_bytes(content)
        (tmp_path / "linked").write_bytes(b"linked")
        (folder / "d").symlink_to(tmp_path / "linked")
        write_interleaved(folder, ["e", "f"], 20, np.random.default_rng(0))
        assert create.run(str(made.mount), str(tmp_path / "bmap"), threads=1) == 1  # the link
        shell("mount -o remount,ro {0}", made)
        yield made, Mapped(from_directory(tmp_path / "root", file_filters="?"), tmp_path / "bmap")


@pytest.fixture
def compared(monkeypatch):
    """How many files each comparison had."""
    counts, check = [], Freshness.check

    def count(self, files, paths):
        counts.append(len(files))
        check(self, files, paths)

    monkeypatch.setattr(Freshness, "check", count)
    return counts


def require_no_comparison(reader, compared, samples):
    """Of one of many batches: other tests mount something in between."""

    def is_not_compared():
        assert read(reader, np.array(samples)) == [CONTENTS[sample] for sample in samples]
        return compared[-1] == 0

    wait_until(is_not_compared)


@pytest.mark.parametrize("kind", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("when", ["between two batches", "while one is read"])
def test_a_write_between_two_remounts_is_noticed(
    tmp_path, compared, monkeypatch, kind, space, when
):
    with mapped_read_only(tmp_path, kind) as (made, mapped), mapped.open() as reader:
        whole, changed = aio.read, tmp_path / "root" / "class" / "b"
        require_no_comparison(reader, compared, range(3))

        def read_and_write(*arguments):
            monkeypatch.setattr(aio, "read", whole)
            results = whole(*arguments)
            shell(THERE_AND_BACK, made, space)
            return results

        if when == "while one is read":
            monkeypatch.setattr(aio, "read", read_and_write)
        else:
            shell(THERE_AND_BACK, made, space)
        with raises_naming(StaleMapError, changed):
            read(reader, np.arange(3))
        require_no_comparison(reader, compared, [0, 2])
        with raises_naming(StaleMapError, changed):
            read(reader, np.array([1]))


@pytest.mark.parametrize(
    ("look", "space", "end", "undo"),
    [
        (math.inf, "here", TOUCH, "true"),  # XFS writes nothing to the device yet
        (0.0, "in another namespace", TOUCH, "true"),
        (math.inf, "here", "umount {0}", "mount {1} {0}"),
        (math.inf, "here", "mount -t tmpfs none {0}/class", "umount {0}/class"),
        (math.inf, "here", "ln -sfn /var {0}/../root", "true"),
    ],
)
def test_files_are_compared_again_when_it_ends(
    tmp_path, compared, monkeypatch, look, space, end, undo
):
    monkeypatch.setattr(read_only, "LOOK_S", look)
    with mapped_read_only(tmp_path, "xfs") as (made, mapped), mapped.open() as reader:
        require_no_comparison(reader, compared, range(3))
        assert f"{made.device}: samples are compared with the map once while" in repr(reader)
        shell(end, made, space)
        try:
            with raises_naming(StaleMapError, tmp_path / "root" / "class" / "b"):
                read(reader, np.array([1]))
        finally:
            shell(undo, made)


@pytest.mark.parametrize("link", ["linked", "class/d"])
def test_a_link_through_another_file_system_is_followed_at_every_read(tmp_path, link):
    with disk(tmp_path, "ext4") as made:
        (made.mount / "class").mkdir()
        for name, content in ("a", b"a" * 10_000), ("b", b"b" * 10_000):
            (made.mount / name).mkdir()
            (made.mount / name / "d").write_bytes(content)
        ends = [made.mount / name / ("" if link == "linked" else "d") for name in "ab"]
        (tmp_path / "hop").symlink_to(ends[0])
        (made.mount / link).symlink_to(tmp_path / "hop")
        sample = made.mount / ("linked/d" if link == "linked" else link)
        create.run(str(made.mount), str(tmp_path / "bmap"), threads=1)
        shell("mount -o remount,ro {0}", made)
        mapped = Mapped(
            from_files([os.path.relpath(sample, made.mount)], file_root=made.mount),
            tmp_path / "bmap",
        )
        with mapped.open() as reader:
            assert read(reader, np.array([0]), mapped.catalog) == [b"a" * 10_000]
            (tmp_path / "new").symlink_to(ends[1])
            os.replace(tmp_path / "new", tmp_path / "hop")
            with raises_naming(StaleMapError, sample):
                read(reader, np.array([0]), mapped.catalog)


def test_files_of_a_directory_that_cannot_be_listed_are_compared_at_every_read(
    tmp_path, compared, monkeypatch
):
    def refuse(path):
        raise PermissionError(path)

    with mapped_read_only(tmp_path) as (_, mapped):
        monkeypatch.setattr(read_only.os, "scandir", refuse)
        with mapped.open() as reader:
            for _ in range(3):
                read(reader, np.arange(3))
                assert compared[-1] == 3


def test_what_changed_before_opening_or_elsewhere_is_refused(tmp_path):
    with mapped_read_only(tmp_path) as (made, mapped):
        with mapped.open() as reader:
            assert read(reader, np.array([0, 3])) == [CONTENTS[0], b"linked"]
            (tmp_path / "linked").write_bytes(b"Linked")
            with raises_naming(StaleMapError, tmp_path / "root" / "class" / "d"):
                read(reader, np.array([0, 3]))
        shell("mount -o remount,rw {0}", made)
        defragment(made.mount / "class" / "e")
        shell("mount -o remount,ro {0}", made)
        moved = raises_naming(StaleMapError, tmp_path / "root" / "class" / "e")
        with mapped.open() as reader, moved:
            read(reader, np.array([4]))
        shell(THERE_AND_BACK, made)
        changed = raises_naming(StaleMapError, tmp_path / "root" / "class" / "b")
        with nothing_stays_open(f"/sys/devices/virtual/block/{made.device[5:]}"), changed:
            mapped.open()


def test_a_read_only_mount_of_a_writable_file_system_is_compared(root, tmp_path):
    (root / "b").write_bytes(CONTENTS[1])
    with mounted(str(root), tmp_path / "bound", "bind", "ro"):
        assert read_only.watch(from_files(["b"], file_root=tmp_path / "bound")) is None


def test_what_cannot_be_watched_is_compared(tmp_path):
    with mapped_read_only(tmp_path) as (made, mapped):
        folder = made.mount / "class"
        for root, name in ((folder, folder / "a"), (folder, "../class/a"), (None, folder / "a")):
            assert read_only.watch(from_files([name], file_root=root)) is None
        iostats = f"/sys/block/{made.device[5:]}/queue/iostats"
        shell(f"echo 0 > {iostats}", made)  # the kernel does not count
        watched = read_only.watch(mapped.catalog)

        def is_compared():
            assert not watched.period()

        for counts in (False, True):
            with mapped.open() as reader:
                assert read(reader, np.arange(3)) == CONTENTS
            assert bool(watched.period()) == counts
            shell(f"echo 1 > {iostats}", made)
        assert status_of_fork(is_compared) == 0
        watched.close()
