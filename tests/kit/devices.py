"""Block devices and file systems of the tests' own, on loop devices. They need root."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

FILE_SYSTEMS = ("ext4", "xfs")
_MKFS = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
    "btrfs": ("mkfs.btrfs", "-q", "-f", "-K"),
}
_PACKAGES = {
    "mkfs.ext4": "e2fsprogs",
    "e4defrag": "e2fsprogs",
    "filefrag": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "xfs_fsr": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "losetup": "mount",
    "partx": "util-linux",
    "sfdisk": "fdisk",
}


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system on a loop device, mounted; `device` is the loop device or its partition."""

    image: Path
    disk: str
    device: str
    mount: Path


def require(*commands: str) -> None:
    """Skip the calling test if it cannot run here; the reason names what is missing."""
    if os.geteuid() != 0:
        pytest.skip("loop devices and mounting need root: run the tests as root")
    for command in commands:
        if shutil.which(command) is None:
            pytest.skip(f"no {command} here: apt-get install {_PACKAGES.get(command, command)}")


def run(*command: str) -> str:
    """The standard output of a command, which must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout.strip()


@contextmanager
def loop_device(image: Path, *, sector: int = 512) -> Iterator[str]:
    """A loop device on an image, with `sector` bytes a logical block."""
    require("losetup")
    device = run(
        "losetup", "--find", "--show", "--partscan", "--sector-size", str(sector), str(image)
    )
    try:
        yield device
    finally:
        subprocess.run(["partx", "--delete", device], capture_output=True, check=False)
        run("losetup", "--detach", device)


def make_file_system(kind: str, device: str, *options: str) -> None:
    """Make a file system of one of `FILE_SYSTEMS`, or btrfs; `options` are passed to mkfs."""
    command = _MKFS[kind]
    require(command[0])
    run(*command, *options, device)


@contextmanager
def mounted(device: str, directory: Path, *options: str) -> Iterator[None]:
    """A file system mounted at a directory, which is created if necessary."""
    directory.mkdir(exist_ok=True)
    run("mount", *(("-o", ",".join(options)) if options else ()), device, str(directory))
    try:
        yield
    finally:
        run("umount", str(directory))


@contextmanager
def disk(
    directory: Path,
    file_system: str = "ext4",
    *,
    size: int = 320 << 20,
    sector: int = 512,
    partition: bool = False,
    mkfs: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> Iterator[Disk]:
    """A new file system of `size` bytes (sparse), mounted at `directory/mnt`.

    XFS cannot be made smaller than 300 MiB. A partition is the first of two, and begins at 1 MiB.
    """
    require("losetup", *(("sfdisk", "partx") if partition else ()))
    image = directory / "disk.img"
    with open(image, "wb") as file:
        file.truncate(size)
    with loop_device(image, sector=sector) as device:
        node = _partition(device, size, sector) if partition else device
        make_file_system(file_system, node, *mkfs)
        with mounted(node, directory / "mnt", *options):
            yield Disk(image, device, node, directory / "mnt")


def _partition(device: str, size: int, sector: int) -> str:
    """Make two partitions; the path of the first, which begins at 1 MiB."""
    blocks = (size - (8 << 20)) // sector
    table = f"label: gpt\nstart={(1 << 20) // sector}, size={blocks}\nsize={(2 << 20) // sector}\n"
    done = subprocess.run(
        ["sfdisk", "--quiet", device], input=table, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # Not every kernel reads GPT: partx reads the table and adds the partitions.
    with contextlib.suppress(AssertionError):  # the kernel has added them
        run("partx", "--add", device)
    return f"{device}p1"


def evict(paths: Iterable[Path]) -> None:
    """Take files out of the page cache, where the kernel lets them go."""
    os.sync()  # it keeps dirty pages
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
