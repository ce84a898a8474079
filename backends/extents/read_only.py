"""Detection of periods without writes to a file system, in which one comparison per file is enough.

The *super options* in /proc/self/mountinfo must be `ro`: a mount can be read-only without a
read-only superblock. Three signals show the end of such a period, and none of them is enough alone
(tried with Linux 6.18):

* poll(2) of mountinfo reports mounts, unmounts and remounts in this mount namespace, also a remount
  there and back. Remounts of the superblock in other mount namespaces or by fsconfig(2) are not
  reported. statfs(2) does not help: its flags do not distinguish a mount from its superblock.
* The super options show every such remount, but not one there and back. They are read each second.
* The count of sectors written to the device grows before mapped data changes.

Two gaps remain: bytes being written to XFS within a second of a remount unreported by poll(2); and
writes below the file system, as by dd(1), which no comparison notices.
"""

import os
import select
import threading
import time
import weakref
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from bmap_tools import file_system

from ...contract.catalog import Catalog
from ..files.opening import close_all

LOOK_S = 1.0  # between two reads of the super options


class ReadOnly:
    """Numbers the periods without writes to a file system, for any number of threads.

    Attributes:
        holds: whether the file system was read-only at the last look.
        compared: int64[files of the catalog], the period of each file's last comparison; 0: none.
        linked: bool[files of the catalog], true for paths with a link below the root. Such a link
            may lead to a writable file system, so these files are always compared.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Watch the file system of the catalog's root, or raise an OSError."""
        self.compared = np.zeros(catalog.file_count, np.int64)
        self.linked = np.zeros(0, np.bool_)
        self._root, self._process, self._lock = catalog.root, os.getpid(), threading.Lock()
        self.holds, self._period, self._look_at = False, 0, 0.0
        self._known: tuple[int, int, bytes] | None = None
        self._sectors_read, self._poll, self._fds = b"", select.poll(), list[int]()
        self.close = weakref.finalize(self, close_all, self._fds)
        self.close.atexit = False
        device = os.stat(self._root).st_dev
        counts = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
        paths = "/proc/self/mountinfo", counts
        self._fds += map(os.open, paths, repeat(os.O_RDONLY | os.O_CLOEXEC))
        self._poll.register(self._fds[0], select.POLLERR | select.POLLPRI)

    def period(self) -> int:
        """The number of the current period; 0 outside of one. Ask after the reads of a batch."""
        with self._lock:
            try:
                # Not in a fork: its poll would take the report away from its parent.
                return self._find_period() if os.getpid() == self._process else 0
            except OSError:  # the file system was unmounted, or no more files can be opened
                self._known = None
                return 0

    def _find_period(self) -> int:
        changed = bool(self._poll.poll(0))  # the next poll does not repeat a report
        there, counts = os.stat(self._root), os.pread(self._fds[1], 4096, 0).split()
        state, now = (there.st_dev, there.st_ino, counts[6]), time.monotonic()
        changed |= state != self._known
        was_read, is_read = self._sectors_read, counts[2]
        if changed or now >= self._look_at:
            held, self.holds = self.holds, self._look()
            self._period += changed or not held
            self._known, self._sectors_read, self._look_at = state, is_read, now + LOOK_S
        # No sectors read: the kernel does not count (iostats), or reads go to an image file.
        return self._period if self.holds and is_read != was_read else 0

    def _look(self) -> bool:
        fd = os.open(self._root, os.O_PATH | os.O_CLOEXEC)
        try:
            return file_system.mount_of(fd).options.split(",")[0] == "ro"
        finally:
            os.close(fd)


def watch(catalog: Catalog) -> ReadOnly | None:
    """Watch the file system of a catalog if nobody can write there now; else return None.

    Files outside of the catalog's root may be on other file systems.
    """
    first = np.frombuffer(catalog.names, np.uint8)[catalog.offsets[:-1]]
    if not catalog.root or (first == ord("/")).any() or b"../" in bytes(catalog.names):
        return None
    try:
        watched = ReadOnly(catalog)
    except OSError:  # a container without /proc or /sys
        return None
    if not watched.period():
        watched.close()
        return None
    watched.linked = _linked(catalog.file_paths(np.arange(catalog.file_count)), catalog.root)
    return watched


def _linked(paths: list[bytes], root: bytes) -> NDArray[np.bool_]:
    real, links = os.path.realpath(root), dict[bytes, set[bytes] | None]()  # by directory
    found = np.zeros(len(paths), np.bool_)
    for row, path in enumerate(paths):
        directory, _, name = path.rpartition(b"/")
        if directory not in links:
            below = os.path.join(real, os.path.relpath(directory, root))
            links[directory] = _links_in(directory, os.path.normpath(below))
        inside = links[directory]
        found[row] = inside is None or name in inside
    return found


def _links_in(directory: bytes, real: bytes) -> set[bytes] | None:
    """The names of the links in a directory; None if its own path has, or may have, a link."""
    if os.path.realpath(directory) != real:
        return None
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:  # the directory can be entered, but not listed
        return None
