"""How long nobody can have written to a file system: files need no second comparison meanwhile.

The *super options* in /proc/self/mountinfo must be `ro`; a mount may be read-only and the
superblock not. The end shows in three ways, none of which is enough (tried with Linux 6.18):

* poll(2) of mountinfo reports what was mounted, unmounted or remounted, also there and back, in
  this mount namespace. It does not report remounts of the superblock in other mount namespaces, nor
  by fsconfig(2). statfs(2) is no help: it does not tell a mount from its superblock.
* The super options tell of all these, but not of one there and back. They are read each second.
* The sectors written to the device grow before what a map points to has changed. Sectors read must
  grow, too: otherwise the kernel does not count (iostats), or the reads are those of an image file.

Left are bytes that are being written to XFS, within a second of a remount that poll(2) does not
report; and what is written below the file system, as by dd(1), which no comparison notices.
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

LOOK_S = 1.0  # after which the super options are read again


class ReadOnly:
    """Numbers the periods in which nobody can write. May be used from several threads.

    Attributes:
        holds: whether the file system was read-only when that was last asked for.
        compared: int64[files of the catalog], the period in which each was compared last; 0: none.
        linked: bool[files of the catalog], paths with a link below the root. The link may lead
            through another file system, where it can be changed; so these are always compared.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Watch the file system of the catalog's root; OSError: that cannot be watched."""
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
        """The number of the present period; 0 outside of one. Ask after the reads of a batch."""
        with self._lock:
            try:
                return self._find_period() if os.getpid() == self._process else 0
            except OSError:  # it was unmounted, or no more files can be opened
                self._known = None
                return 0

    def _find_period(self) -> int:
        changed = bool(self._poll.poll(0))  # the next poll does not report it again
        there, counts = os.stat(self._root), os.pread(self._fds[1], 4096, 0).split()
        state, now = (there.st_dev, there.st_ino, counts[6]), time.monotonic()
        changed |= state != self._known
        was_read, is_read = self._sectors_read, counts[2]
        if changed or now >= self._look_at:
            held, self.holds = self.holds, self._look()
            self._period += changed or not held
            self._known, self._sectors_read, self._look_at = state, is_read, now + LOOK_S
        return self._period if self.holds and is_read != was_read else 0

    def _look(self) -> bool:
        fd = os.open(self._root, os.O_PATH | os.O_CLOEXEC)
        try:
            return file_system.mount_of(fd).options.split(",")[0] == "ro"
        finally:
            os.close(fd)


def watch(catalog: Catalog) -> ReadOnly | None:
    """Watch the file system of a catalog if nobody can write to it now, else None.

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
    """The names of the links in a directory; None if there is a link on the way, or may be."""
    if os.path.realpath(directory) != real:
        return None
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries if entry.is_symlink()}
    except OSError:  # it may be entered, and not listed
        return None
