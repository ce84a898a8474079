"""Files with layouts on disk that are hard to read right, and their map."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bmap_tools import create
from dali_storage.contract.catalog import Catalog
from dali_storage.testing import SIZES
from tests.kit.devices import require, run

_BLOCK = 4096


def make_map(root: Path | bytes, bmap: Path) -> Path:
    assert create.run(os.fsdecode(root), str(bmap), threads=1) == 0
    return bmap


def write_interleaved(directory: Path, names: list[str], blocks: int, random: Any) -> None:
    """Files whose blocks are allocated in turn, so that each block is an extent."""
    for block in range(blocks):
        for name in names:
            fd = os.open(directory / name, os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(fd, block * _BLOCK, _BLOCK)
            os.pwrite(fd, random.bytes(_BLOCK), block * _BLOCK)
            os.close(fd)  # releases the space that was reserved behind the block
    for name in names:
        os.truncate(directory / name, blocks * _BLOCK - 99)


def write_sparse(path: Path, size: int, ranges: list[tuple[int, int]], random: Any) -> None:
    with open(path, "wb") as file:
        for start, end in ranges:
            file.seek(start)
            file.write(random.bytes(end - start))
        file.truncate(size)


def fill_free_space(directory: Path, random: Any) -> None:
    """Leave other data on the disk where files will be preallocated."""
    for index in range(40):
        (directory / f"junk{index}").write_bytes(random.bytes(1 << 20))
    os.sync()
    for index in range(40):
        (directory / f"junk{index}").unlink()
    os.sync()


def preallocate(path: Path, size: int, ranges: list[tuple[int, int]], random: Any) -> None:
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, size)
    os.fsync(fd)
    for start, end in ranges:
        os.pwrite(fd, random.bytes(end - start), start)
    os.close(fd)


def make_hostile_files(directory: Path, seed: int = 7) -> None:
    """One file of each hostile kind, none of them synced.

    The seed makes the bytes differ from those that a disk held before.
    """
    random = np.random.default_rng(seed)
    directory.mkdir()
    fill_free_space(directory, random)
    for size in SIZES:
        (directory / f"size{size}").write_bytes(random.bytes(size))
    write_interleaved(directory, ["interleaved1", "interleaved2", "interleaved3"], 200, random)
    hole, end = 10 * _BLOCK, 30 * _BLOCK
    write_sparse(directory / "hole-first", end + 7, [(hole, end + 7)], random)
    write_sparse(directory / "hole-middle", end + 7, [(0, 100), (hole, end + 7)], random)
    write_sparse(directory / "hole-last", end + 7, [(0, hole + 100)], random)
    write_sparse(directory / "hole-only", end + 7, [], random)
    write_sparse(
        directory / "holes", 99 * _BLOCK, [(i * _BLOCK, i * _BLOCK + 9) for i in range(0, 90, 3)],
        random,
    )  # fmt: skip
    preallocate(directory / "preallocated", end + 7, [], random)
    preallocate(directory / "preallocated-partly", end + 7, [(hole, hole + 5000)], random)
    run("fallocate", "--keep-size", "--length", "1MiB", str(directory / "size4097"))
    os.link(directory / "size131073", directory / "hard-link")
    os.symlink("size513", directory / "symbolic-link")


def defragment(path: Path) -> None:
    """Move the data of a file on ext4 or XFS, which leaves its times as they are."""
    tool = ("xfs_fsr", "-v") if run("stat", "-f", "-c", "%T", str(path)) == "xfs" else ("e4defrag",)
    require(tool[0])
    before = path.stat()
    run(*tool, str(path))
    after = path.stat()
    assert (before.st_mtime_ns, before.st_ctime_ns) == (after.st_mtime_ns, after.st_ctime_ns)


def contents_of(catalog: Catalog) -> list[bytes]:
    return [Path(os.fsdecode(catalog.path(i))).read_bytes() for i in range(len(catalog))]
