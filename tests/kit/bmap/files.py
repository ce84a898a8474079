"""Files and their extents, seen and made with other tools."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bmap_tools.fiemap import RawExtent
from tests.kit.devices import Disk, run

LAST, UNKNOWN, DELALLOC, UNWRITTEN, MERGED, SHARED = 0x1, 0x2, 0x4, 0x800, 0x1000, 0x2000
FLAGS = {
    "last": LAST,
    "unknown_loc": UNKNOWN,
    "delalloc": DELALLOC,
    "unwritten": UNWRITTEN,
    "merged": MERGED,
    "shared": SHARED,
    "inline": 0x200,
    "not_aligned": 0x100,
}


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def filefrag(path: Path) -> list[RawExtent]:
    """Logical, physical, length and flags of each extent, as filefrag prints them."""
    rows = []
    for line in run("filefrag", "-v", "-s", "-b1", str(path)).splitlines():
        if match := re.match(r" *\d+: *(\d+)\.\. *\d+: *(\d+)\.\. *\d+: *(\d+):(.*)", line):
            names = re.split(r"[, ]+", match[4].rpartition(":")[2].strip())
            flags = sum(FLAGS[name] for name in names if name not in ("eof", ""))
            rows.append((int(match[1]), int(match[2]), int(match[3]), flags))
    return rows


def fragment(path: Path, pieces: int) -> None:
    """Write a file, and take every other of its blocks out: `pieces` extents without a hole."""
    path.write_bytes(os.urandom(2 * pieces * 4096 - 100))
    with open(path, "r+b") as file:
        os.fsync(file.fileno())
        for piece in range(1, pieces):
            collapsed = _fallocate(file.fileno(), 0x8, piece * 4096, 4096)
            assert collapsed == 0, os.strerror(ctypes.get_errno())


_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root becomes nobody; any other user stays what they are."""
    if os.geteuid():
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setgroups(groups)


def set_flags(made: Disk, name: str, flags: int) -> None:
    """Set a file's flags where chattr needs CAP_SYS_RESOURCE."""
    run("umount", str(made.mount))
    try:
        run("debugfs", "-w", "-R", f"set_inode_field /{name} flags {flags}", made.device)
    finally:
        run("mount", made.device, str(made.mount))
