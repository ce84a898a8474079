"""The files of a catalog's samples: each is sized once, and opened for every read."""

import errno
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress, repeat

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import SampleSizeChanged, os_error
from ...contract.options import Choice
from ...contract.reader import Batch
from ...runtime.machine import cache_memory, cacheable, gigabytes
from ..linux import uring
from . import opening
from .opening import close_all, is_local, open_cached, open_files, open_missing

FILES_AT_ONCE = 64  # per lane; a process may open 1,024 files by default

_CACHE_LINE = 64  # bytes; the kernel copies a fifth faster to addresses that are multiples of 64
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block of every disk
_STATS, _STATS_S = 1000, 0.25  # the most files sized to estimate the rest, and about how long
_REGION = 20  # log2 of the bytes of a container that are all cached, or all not
# 2**64 by the plastic number and its square: of any files or regions in a row, as much is cached.
_STEPS = np.uint64(0xC13FA9A902A6328F), np.uint64(0x91E10DA5C79E7B1D)


class SampleFiles:
    """Opens, sizes and closes the files of samples, in any lane.

    Files opened by `sizes()` stay open until the next read in the same lane.

    Of a data set larger than memory, a fixed share is read through the page cache, chosen by number
    and place alone, so that all processes cache the same; the rest is read with O_DIRECT.

    Attributes:
        flags: for open(2) of what is not read through the page cache.
        share: of the data, from 0 to 1, read through the page cache; and why.
        alignment: bytes; addresses of samples should be multiples of this.
        unit: bytes; offsets and lengths of reads must be multiples of this.
        local: whether the file system of the first file `is_local()`.
        by_ring: whether io_uring may open files and look up their sizes.
    """

    def __init__(self, catalog: Catalog, *, direct: bool | None, by_ring: bool = False) -> None:
        """Open nothing yet. `direct`: read around the page cache, with O_DIRECT; None: by size.

        Raises:
            OSError: `direct`, and the file system of the first file does not support O_DIRECT.
        """
        # To open a pipe must not block; a terminal must not become the process's own.
        self.flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
        self._catalog = catalog
        # Of a linked file, the file system is that of its target.
        first = os.path.realpath(catalog.file_path(0)) if catalog.file_count else b""
        directory = os.path.dirname(first)
        self.local = is_local(directory)
        given = Choice(0.0 if direct else 1.0, "given")
        self.share = self._choose_share(directory) if direct is None else given
        if direct and (refusal := self._refusal()):
            raise refusal
        around = self.share.value < 1
        self.flags |= os.O_DIRECT if around else 0
        self.alignment = _DIRECT_ALIGNMENT if around else _CACHE_LINE
        self.unit = _DIRECT_ALIGNMENT if around else 1
        self.by_ring = by_ring
        # `~size` of each file; 0 until it is sized, because pages of zeros take no memory.
        self._inverted = np.zeros(catalog.file_count, np.int64)
        self._kept: dict[int, dict[int, int]] = {}  # by lane: sample -> descriptor
        _instances.add(weakref.ref(self, _instances.discard))

    def flags_of(self, samples: IntArray) -> IntArray:
        """Return the flags of open(2) for each of `samples`, whole files: int64[n]."""
        return np.where(self.cached(samples), self.flags & ~os.O_DIRECT, self.flags)

    def cached(self, files: IntArray, starts: IntArray | None = None) -> npt.NDArray[np.bool_]:
        """Return which whole files, or reads from `starts` on, use the page cache: bool[n]."""
        if self.share.value in (0, 1):
            return np.full(files.size, self.share.value == 1)
        place = files.astype(np.uint64) * _STEPS[0]
        if starts is not None:
            place += (starts >> _REGION).astype(np.uint64) * _STEPS[1]
        return place < np.uint64(self.share.value * 2**64)

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        """As `Reader.sizes()`."""
        # Left by a batch without a read. They are reopened, because one may have been replaced.
        self._close_kept(lane)
        # Repeatedly, because another lane may meanwhile find that a size has changed.
        while ((sizes := ~self._inverted[samples]) < 0).any():
            unsized = np.unique(samples[sizes < 0])
            for start in range(0, unsized.size, FILES_AT_ONCE):
                self._size(unsized[start : start + FILES_AT_ONCE], lane)
        return sizes

    def require_sizes(self, batch: Batch, found: IntArray) -> None:
        """Raise `SampleSizeChanged` if a batch's sizes differ from the sizes found, int64[n]."""
        changed = batch.samples[found != batch.sizes]
        if changed.size:
            self.forget(changed)
            raise SampleSizeChanged(changed)

    def forget(self, samples: IntArray) -> None:
        """Forget the sizes of `samples`, which are sized again when next needed."""
        self._inverted[samples] = 0

    def keeps(self, lane: int) -> bool:
        """Whether files that `sizes()` opened are still open for the next read."""
        return bool(self._kept.get(lane))

    def open(
        self, fds: list[int], samples: IntArray, lane: int, *, wait: bool = True
    ) -> list[bytes]:
        """Fill an empty list with descriptors of `samples`; the caller closes them.

        At the limit of open files, only the first samples are opened: at least one, or possibly
        none without `wait`, see `open_missing()`.

        Returns the paths of all samples.
        """
        paths, flags = self._take_kept(fds, samples, lane), self.flags_of(samples)
        if not (self.local and open_cached(fds, paths, flags)):
            open_missing(fds, paths, flags, wait=wait, close_others=close_all_kept)
        return paths

    def sizes_now(self, fds: list[int], paths: Sequence[bytes]) -> IntArray:
        """The current sizes of open files, as `opening.regular_sizes()`."""
        return opening.regular_sizes(fds, paths, self.local)

    def name(self, sample: int) -> str:
        """Return the name of a sample for the statistics."""
        return os.fsdecode(self._catalog.path(sample))

    def read_error(self, number: int, sample: int) -> OSError:
        """The error for a read that failed with errno `number`."""
        path, where = self._catalog.path(sample), self._catalog.where(sample)
        hint = f": {where}" if where else ""
        if self.unit > 1 and number == errno.EINVAL:
            hint += "; the option direct=False reads it through the page cache"
        return os_error(number, path, hint)

    def close(self) -> None:
        """Close the files that are kept open. Closing twice is fine."""
        for lane in list(self._kept):
            self._close_kept(lane)

    def _choose_share(self, directory: bytes) -> Choice[float]:
        if (used := opening.used_bytes(directory)) is None:
            return Choice(1.0, "tmpfs, or not on a known local disk")
        share = cached_share(used, memory := cache_memory())
        if share.value < 1:  # the disk has more bytes, so the data set may have
            share = cached_share(self._total(), memory)
        if share.value < 1 and self._refusal():
            return Choice(1.0, "its file system does not support O_DIRECT")
        return share

    def _total(self) -> int:
        """The bytes of all samples; of many files, estimated from the same thousand."""
        if (ranges := self._catalog.ranges) is not None:
            return int(ranges.sizes.sum(dtype=np.int64))
        count, pages = self._catalog.file_count, list[int]()
        some = np.random.default_rng(0).choice(count, min(count, _STATS), replace=False)
        deadline = time.monotonic() + _STATS_S
        for path in self._catalog.file_paths(some):
            with suppress(OSError):  # a missing file is an error when read
                pages.append(-(-os.stat(path).st_size // mmap.PAGESIZE))
            if len(pages) > _STATS // 20 and time.monotonic() > deadline:
                break
        return mmap.PAGESIZE * sum(pages) * count // max(len(pages), 1)

    def _refusal(self) -> OSError | None:
        """The error of a first file without O_DIRECT; its other errors are raised by its read."""
        paths = self._catalog.file_paths(np.arange(self._catalog.file_count)[:1])
        with open_files() as fds:
            fds += [-1] * len(paths)
            try:
                open_missing(fds, paths, self.flags | os.O_DIRECT)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    return error
        return None

    def _take_kept(self, fds: list[int], samples: IntArray, lane: int) -> list[bytes]:
        """Fill an empty list with kept descriptors, or -1; return the paths of all samples."""
        # Each is popped, because another lane may close it at the same time.
        fds += map(self._kept.get(lane, {}).pop, samples.tolist(), repeat(-1))
        return self._catalog.paths(samples)

    def _size(self, samples: IntArray, lane: int) -> None:
        """Size at least one of `samples`; keep files open if opened, FILES_AT_ONCE at most."""
        with open_files() as fds:
            paths, flags = self._take_kept(fds, samples, lane), self.flags_of(samples)
            if not (self.local and open_cached(fds, paths, flags)):
                if self.by_ring and (ring := uring.ring()) is not None:
                    # At the same time; the others, opened one by one, give their errors.
                    closed, left = np.array(fds) < 0, np.ones(samples.size, bool)
                    sizes = ring.sizes([*compress(paths, closed)])
                    self._inverted[samples[closed]], left[closed] = ~sizes, sizes < 0
                    samples, flags = samples[left], flags[left]
                    paths, fds[:] = [*compress(paths, left)], compress(fds, left)
                open_missing(fds, paths, flags, close_others=close_all_kept)
            self._inverted[samples[: len(fds)]] = ~self.sizes_now(fds, paths)
            kept = self._kept.setdefault(lane, {})
            room = FILES_AT_ONCE - len(kept)
            kept.update(zip(samples[:room].tolist(), fds[:room], strict=False))
            del fds[:room]

    def _close_kept(self, lane: int) -> None:
        if not (kept := self._kept.get(lane)):
            return
        # Each is popped, because its own lane may pop it at the same time.
        close_all(map(kept.pop, list(kept), repeat(-1)))


# Open files are limited per process, so a lane may close kept files of all instances.
_instances: set[weakref.ref[SampleFiles]] = set()


def close_all_kept() -> None:
    """Close the files that any instance keeps open for a next read, which then reopens them."""
    # A copy, because an instance may die meanwhile.
    for reference in list(_instances):
        if (instance := reference()) is not None:
            instance.close()


def cached_share(nbytes: int, memory: int | None) -> Choice[float]:
    """Return the share of `nbytes` on a local disk to read through the page cache.

    Only a fixed share, because the kernel evicts what a shuffled epoch needs next.
    """
    if memory is None:
        return Choice(1.0, "the memory that may hold the data set is unknown")
    if nbytes <= (most := cacheable(memory)):
        what = "the data set fits in the memory that may hold it"
        return Choice(1.0, f"{what}, {gigabytes(most)}")
    share, what = most / nbytes, f"the data set, {gigabytes(nbytes)}, is larger than the memory"
    return Choice(share, f"{what} that may hold it, {gigabytes(most)}; {share:.0%} of it is cached")
