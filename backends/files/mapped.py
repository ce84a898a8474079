"""Memory-mapped containers: batches are views of the page cache, without a copy."""

import os
import resource
import threading
from pathlib import Path

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import BackendUnavailable, named
from ...contract.ranges import Spans, lay_out
from ...contract.stages import yield_turn
from ...contract.views import Views
from ..linux import mapping
from ..linux.sysfs import sysfs_text
from .containers import changed_error
from .opening import is_local
from .spans import ContainerBatches

_MOST = Path("/proc/sys/vm/max_map_count")
_PAGE = resource.getpagesize()


class MappedFiles:
    """The containers of a catalog in one range of addresses, each mapped at its first use.

    Populated samples are remembered, one byte each, until the kernel reclaims pages.
    """

    def __init__(
        self, catalog: Catalog, spans: ContainerBatches | None, *, or_read: bool = False
    ) -> None:
        """Map nothing yet; `spans` keeps the containers open, None for whole files.

        With `or_read`, samples of a container that cannot be mapped have no views; else that is an
        error of `views()`.

        Raises:
            ValueError: samples are whole files, or there are too many containers.
            BackendUnavailable: mapping is unsafe or impossible here.
        """
        if (ranges := catalog.ranges) is None or spans is None:
            what = "io='mmap' is for containers: mapping whole files is slower than reading them"
            raise ValueError(f"{what}; leave out io")
        count, most = catalog.file_count, int(sysfs_text(_MOST) or 65530)
        if count > most // 4:
            what = f"io='mmap': {count:,} containers are more than a quarter of vm.max_map_count"
            raise ValueError(f"{what} ({most:,}); leave out io, or raise the limit (sysctl)")
        if (problem := mapping.missing()) is not None:
            raise problem
        self._rooms = np.zeros(count, np.int64)
        for file, path in enumerate(catalog.file_paths(np.arange(count))):
            if os.path.exists(path):  # a missing file is an error when read
                if not is_local(path):
                    what = f"{os.fsdecode(path)} is not on a known local file system"
                    raise BackendUnavailable(f"{what}; losing a mapped file kills the process")
                self._rooms[file] = os.path.getsize(path)
        self._rooms = (self._rooms // mapping.ROOM + 1) * mapping.ROOM
        self._at = np.cumsum(self._rooms) - self._rooms
        nbytes = int(self._rooms.sum())
        try:
            self._buffer = mapping.reserve(nbytes)
        except (OSError, OverflowError) as error:
            raise BackendUnavailable(f"cannot map {nbytes:,} bytes: {error}") from None
        self._catalog, self._ranges, self._containers = catalog, ranges, spans.containers
        self._mapped: dict[int, tuple[bytes, tuple[int, ...]]] = {}  # path and identity
        self._lock = threading.Lock()  # of `_mapped`
        self._or_read = or_read
        self._populated = np.zeros(len(ranges), np.bool_)
        self._populating = set[int]()  # lanes
        self._faults: int | None = None  # when last asked, if all was hot then

    def hot(self, samples: IntArray) -> bool:
        """See `SupportsHotViews`."""
        before, self._faults = self._faults, None
        if not self._populated[samples].all():
            return False
        if self._populating:  # faults cannot be attributed to a lane
            return True
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if before not in (None, faults):
            # A thread has waited for the disk: pages were reclaimed, perhaps of these samples.
            self._populated[:] = False
            return False
        self._faults = faults
        return True

    def views(self, samples: IntArray, lane: int) -> Views | None:
        """See `SupportsViews`; None also for a missing sample, for which `read()` then raises."""
        files, starts = self._ranges.files_of(samples), self._ranges.starts[samples]
        sizes = self._ranges.sizes[samples].astype(np.int64)
        used = [*dict.fromkeys(files[sizes > 0].tolist())]
        if not self._populated[samples].all():
            if not self._map([file for file in used if file not in self._mapped], lane):
                return None
            # Populating may block on the disk.
            yield_turn()
            if not self._populate(lay_out(files, starts, sizes, _PAGE, _PAGE)[-1], lane):
                return None
            self._populated[samples] = True
        mapped = [self._mapped[file] for file in used]
        with named():  # 3 us per file; `Containers.changed()` needs 16 for the first
            found = [os.stat(path) for path, _ in mapped]
        for (path, known), it in zip(mapped, found, strict=True):
            if (it.st_ino, it.st_size, it.st_mtime_ns) != known:
                raise changed_error(path)
        for file in self._catalog.altered(used):
            raise changed_error(self._catalog.file_path(file))
        return Views(self._buffer, self._at[files] + starts, sizes)

    def close(self) -> None:
        """Unmap the containers when the last view dies. Closing twice is fine."""
        # A copy, because an empty slice would keep the maps.
        self._buffer = self._buffer[:0].copy()

    def _map(self, files: list[int], lane: int) -> bool:
        """Map containers; False if one cannot be mapped, and samples may be read instead."""
        try:
            while files:
                fds = self._containers.open(files[: self._containers.at_once], lane)
                if not all(map(self._map_one, files, fds)):
                    return False
                files = files[len(fds) :]
            return True
        finally:
            self._containers.release(lane)

    def _map_one(self, file: int, fd: int) -> bool:
        path, at = self._catalog.file_path(file), int(self._at[file])
        with self._lock:
            # Under the lock: another lane may have mapped the file meanwhile.
            if file not in self._mapped:
                address = self._buffer.ctypes.data + at
                try:
                    mapping.map_file(address, fd, int(self._rooms[file]), path)
                except OSError:  # others may have used up vm.max_map_count
                    if self._or_read:
                        return False
                    raise
                self._mapped[file] = path, self._containers.identity(file)
        return True

    def _populate(self, spans: Spans, lane: int) -> bool:
        sizes = np.array([self._mapped[file][1][1] for file in spans.files.tolist()])
        sizes = np.minimum(sizes, self._rooms[spans.files])  # a replacement may be longer
        if (spans.starts + spans.needed > sizes).any():
            return False  # the rest of the last page reads as zeros, without an error
        addresses = self._buffer.ctypes.data + self._at[spans.files] + spans.starts
        self._populating.add(lane)
        try:
            return mapping.populate(addresses, spans.sizes)
        finally:
            self._populating.discard(lane)
