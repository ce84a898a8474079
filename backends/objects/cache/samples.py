"""Cache of object samples on a local disk, shared by all processes of a machine.

The key of an entry is the URL and version of the object, and the sample's range. A replaced object
has new entries, so nothing has to be invalidated.
"""

import os
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from ....contract._types import IntArray, PathLike
from ....contract.catalog import Catalog
from ....contract.errors import CacheNotUsed, os_error
from ....contract.ranges import Spans
from ....contract.reader import Batch
from ....contract.stages import enter
from ....runtime.machine import show_name
from ...files.opening import is_local, open_cached, open_each, open_files, statuses
from ...files.samples import FILES_AT_ONCE
from ...linux.libc import make_iovecs
from ...linux.transfers import Engine, Transfers
from .entries import TRAILER, Entries

_READ = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
_BACKLOG = 4  # batches that wait to be written; further samples are not added
_CLOSING_S = 3.0  # the longest wait of close() for these

# Read from a file after the sample: if any byte of the last field arrives, the file is too long.
_REST = np.dtype([("trailer", TRAILER), ("behind", "<u8")])

Flags = npt.NDArray[np.bool_]


class Cache:
    """The entries in a directory, for any number of threads and processes.

    The length and identity of an entry are checked at every read. The CRC-32C of its bytes is
    compared at a reader's first read, after a change of the file, and if bytes came from the disk
    instead of the page cache. A damaged entry is removed.

    A separate thread writes entries. If the disk is slower than the store, some samples are not
    added: nobody waits for a cache.
    """

    def __init__(
        self,
        catalog: Catalog,
        directory: PathLike,
        limit: int | None,
        *,
        read: Engine,
        store: bytes = b"",
    ) -> None:
        """Create the directory if only its last component is missing.

        Args:
            catalog: the samples.
            directory: on a local disk.
            limit: the most bytes of entries of all processes; None: until only a tenth of the file
                system is free.
            read: reads many files at once.
            store: distinguishes stores in which the same URL names different objects.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: not a directory, or not writable; names the path and the option.
        """
        root = os.fsencode(directory) if isinstance(directory, str | bytes | os.PathLike) else b""
        if not root or b"\0" in root:
            what = f"object-store: cache must be the path of a directory, not {directory!r}"
            raise ValueError(what)
        self._entries = Entries(os.path.abspath(root), limit, store)
        self._catalog = catalog
        self._engine = read
        self._local = is_local(self._entries.directory)
        self._checked = np.zeros(len(catalog), np.int64)  # by sample: the file's ctime in ns, or 0
        self._adds = True
        self._warned = False
        self._lock = threading.Lock()
        self._backlog: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None

    def read(self, batch: Batch, versions: Sequence[bytes]) -> IntArray:
        """Read the cached samples of a batch.

        Args:
            batch: the samples; its buffer is host memory.
            versions: one for the object of each sample; empty if nothing identifies their bytes.

        Returns:
            int64[k], the slots of missing samples. Their memory has undefined contents.
        """
        found = np.zeros(batch.samples.size, bool)
        for start in range(0, found.size, FILES_AT_ONCE):
            part = slice(start, start + FILES_AT_ONCE)
            try:
                found[part] = self._read(_part(batch, part), versions[part])
            except OSError as error:
                self._give_up(error)
        # An empty range is in no span: its object is not known, and nothing has to be read.
        in_span = np.isin(np.arange(found.size), batch.spans.slots)
        return np.flatnonzero(~found & (in_span | (batch.sizes > 0)))

    def add(self, batch: Batch, versions: Sequence[bytes], slots: IntArray) -> None:
        """Queue the samples in k slots of a batch for writing, as far as there is room.

        The samples are copied, so the buffer may be reused. After an error, no more samples are
        added, with the warning `CacheNotUsed`.
        """
        unknown = [slot for slot in slots.tolist() if not versions[slot]]
        if unknown:
            url = os.fsdecode(self._catalog.path(int(batch.samples[unknown[0]])))
            self._warn(f"{url!r} has no strong ETag and is not cached")
            slots = np.setdiff1d(slots, unknown)
        if not self._adds or not slots.size or self._backlog.qsize() >= _BACKLOG:
            return
        samples, starts, sizes = (it[slots] for it in (batch.samples, batch.starts, batch.sizes))
        copy = np.concatenate([_content(batch, slot) for slot in slots.tolist()])
        offsets = np.cumsum(sizes) - sizes
        spans = Spans.of_files(samples, sizes, offsets, 1)
        kept = Batch(samples, starts, sizes, offsets, copy, spans)
        try:
            self._start_writer()
        except RuntimeError as error:  # no thread can be started; reading goes on
            self._give_up(error)
            return
        self._backlog.put(partial(self._write, kept, [versions[slot] for slot in slots.tolist()]))

    def close(self) -> None:
        """Write queued samples, for at most 3 seconds, and close the entries.

        Closing twice is fine.
        """
        self._backlog.put(None)
        if self._writer is None:
            self._entries.close()
        else:
            self._writer.join(_CLOSING_S)
        self._adds = False

    def _start_writer(self) -> None:
        with self._lock:
            if self._writer is None:
                # A daemon: at exit Python joins all others, and this one may wait for a disk.
                writer = threading.Thread(target=self._work, name="dali_storage:cache", daemon=True)
                writer.start()
                self._writer = writer

    def _work(self) -> None:
        show_name()
        try:
            while job := self._backlog.get():
                job()
                del job  # otherwise its samples would stay in memory until the next job
        finally:
            self._adds = False
            self._entries.close()

    def _write(self, batch: Batch, versions: Sequence[bytes]) -> None:
        if self._adds:
            digests = self._digests(batch, versions)
            contents = [_content(batch, slot) for slot in range(len(digests))]
            try:
                self._entries.add(digests, contents)
            except OSError as error:
                self._give_up(error)

    def _digests(self, batch: Batch, versions: Sequence[bytes]) -> list[bytes]:
        """Compute the identities of n samples: 16 bytes each."""
        urls, starts = self._catalog.paths(batch.samples), batch.starts.tolist()
        columns = zip(urls, versions, starts, batch.sizes.tolist(), strict=True)
        return [self._entries.digest(*column) for column in columns]

    def _read(self, batch: Batch, versions: Sequence[bytes]) -> Flags:
        """Read samples; return bool[n], true for cached ones; n is at most FILES_AT_ONCE."""
        digests = self._digests(batch, versions)
        paths = [self._entries.path(digest) for digest in digests]
        with open_files() as fds:
            fds += [-1] * len(paths)
            if not (self._local and open_cached(fds, paths, _READ)):
                open_each(fds, paths, _READ)
            found = np.array(fds) >= 0
            slots = np.flatnonzero(found)
            if slots.size:
                present = slots.tolist()
                columns = [digests[slot] for slot in present], [fds[slot] for slot in present]
                found[slots] = self._read_files(_part(batch, slots), *columns)
            for damaged in slots[~found[slots]].tolist():
                try:
                    self._entries.remove(paths[damaged], int(batch.sizes[damaged]))
                except OSError as error:
                    self._give_up(error)
        return found

    def _read_files(self, batch: Batch, digests: list[bytes], fds: list[int]) -> Flags:
        """Read and check entries in open files; return bool[n], true for valid ones."""
        rest = np.zeros(len(fds), _REST)
        behind = rest.ctypes.data + np.arange(len(fds)) * _REST.itemsize, TRAILER.itemsize + 1
        iovecs = make_iovecs((batch.addresses, batch.sizes), behind)
        sizes = batch.sizes + TRAILER.itemsize
        status = statuses(fds, [b""] * len(fds), self._local)
        before: IntArray = status["ctime_s"] * 10**9 + status["ctime_ns"]
        known = self._checked[batch.samples]
        enter("reading")
        reads = Transfers(self._engine, fds, iovecs, np.zeros_like(sizes), sizes, 1, to_end=True)
        trusted = reads.complete(cached_first=np.ones(len(fds), bool)) & (known == before)
        for failed in np.flatnonzero(reads.errors)[:1].tolist():
            path = self._entries.path(digests[failed])
            self._give_up(os_error(int(reads.errors[failed]), path))
        enter("checking")
        trailer = rest["trailer"]
        wanted = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        right: Flags = (reads.got == sizes) & (trailer["digest"] == wanted).all(axis=1)
        for slot in np.flatnonzero(right & ~trusted).tolist():
            right[slot] = crc32c(_content(batch, slot)) == trailer["crc"][slot]
        # A sample may occur twice, and have been read from the disk only the first time.
        right &= ~np.isin(batch.samples, batch.samples[~right])
        self._checked[batch.samples] = np.where(right, before, 0)
        return right

    def _give_up(self, error: Exception) -> None:
        self._adds = False
        self._warn(f"{error}; no more samples are cached")

    def _warn(self, what: str) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            where = f"object-store: cache={os.fsdecode(self._entries.root)!r}"
            warnings.warn(f"{where}: {what}", CacheNotUsed, stacklevel=2)


def _part(batch: Batch, chosen: slice | IntArray) -> Batch:
    """Some slots of a batch, with all spans."""
    samples, starts, sizes, offsets = (
        column[chosen] for column in (batch.samples, batch.starts, batch.sizes, batch.offsets)
    )
    return Batch(samples, starts, sizes, offsets, batch.buffer, batch.spans)


def _content(batch: Batch, slot: int) -> npt.NDArray[np.uint8]:
    """The bytes of a sample: a view of the buffer."""
    start, size = int(batch.offsets[slot]), int(batch.sizes[slot])
    content: npt.NDArray[np.uint8] = batch.buffer[start : start + size]
    return content
