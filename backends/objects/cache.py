"""Samples of objects on a local disk, shared by all processes of a machine.

An entry is found by the URL and version of the object, and by the sample's place in it. So an
object that was replaced has other entries, and nothing has to be invalidated.
"""

import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from ..._types import IntArray
from ...catalog import Catalog
from ...errors import CacheNotUsed, named, os_error
from ...options import require_integer
from ...reader import Batch
from ..files.opening import is_local, open_cached, open_each, open_files, statuses
from ..files.samples import FILES_AT_ONCE
from ..linux.libc import IOVEC
from ..linux.reads import Read, Reads
from .room import TEMPORARY, Room, occupied

_LAYOUT = b"objects-1"  # another layout must have another name: old and new may share a directory
_HINT = ": the option cache must name a directory that can be written to, on a local disk"
_READ = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CRASHED_S = 3600.0  # a file that was not renamed by then never will be

# An entry is a file: the bytes of the sample, and a trailer.
_TRAILER = np.dtype([("digest", "<u8", 2), ("crc", "<u4")])
# What is read of a file after the sample: if any byte of the last field arrives, it is too long.
_REST = np.dtype([("trailer", _TRAILER), ("behind", "<u8")])

Flags = npt.NDArray[np.bool_]


class Cache:
    """The entries in a directory, for any number of threads and processes.

    An entry is written under a temporary name, then renamed. It is checked whenever it is read: its
    length, and that it is the sample's. The CRC-32C of its bytes is compared when a reader reads it
    for the first time, when its file has been changed since, and when it came from the disk instead
    of the page cache. A damaged entry is removed.

    When the directory is full, nothing more is added. An epoch uses every sample once, so no entry
    is worth more than another. `Room` removes those that nobody uses any more.
    """

    def __init__(
        self,
        catalog: Catalog,
        directory: str | bytes | os.PathLike[str],
        limit: int | None,
        *,
        read: Read,
        store: bytes = b"",
    ) -> None:
        """Create the directory if only its last component is missing.

        Args:
            catalog: the samples.
            directory: on a local disk.
            limit: bytes that the entries of all processes may take; None: until only a tenth of the
                file system is free.
            read: reads many files at once.
            store: tells apart stores in which the same URL names different objects.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: it is no directory, or cannot be written to; names it and the option.
        """
        if limit is not None:
            require_integer("object-store", "cache_bytes", limit, range(1, 1 << 62))
        self._directory = os.path.abspath(os.fsencode(directory))
        self._catalog = catalog
        self._engine = read
        self._store = blake2b(store, digest_size=16).digest()
        self._layout = os.path.join(self._directory, _LAYOUT)
        parts = (b"%s/%02x" % (self._layout, number) for number in range(256))
        with named(self._directory, _HINT):
            for path in (self._directory, self._layout, *parts):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)  # the bytes of objects that others may not read
            self._room = Room(self._layout, limit)
        self._local = is_local(self._layout)
        self._checked = np.zeros(len(catalog), np.int64)  # by sample: the file's ctime in ns, or 0
        self._adds = True
        self._warned = False
        self._lock = threading.Lock()

    def read(
        self, batch: Batch, versions: Sequence[bytes], yield_turn: Callable[[], None]
    ) -> IntArray:
        """Read those samples of a batch that are in the cache.

        Args:
            batch: the samples; its buffer is host memory.
            versions: of the n samples' objects; empty if nothing identifies their bytes.
            yield_turn: called before it blocks.

        Returns:
            int64[k], the slots of the others. What their memory holds has no meaning.
        """
        found = np.zeros(batch.samples.size, bool)
        for start in range(0, found.size, FILES_AT_ONCE):
            part = slice(start, start + FILES_AT_ONCE)
            try:
                found[part] = self._read(_part(batch, part), versions[part], yield_turn)
            except OSError as error:
                self._give_up(error)
        if self._catalog.ranges is not None:
            found |= batch.sizes == 0  # nothing is known of their objects
        return np.flatnonzero(~found)

    def add(self, batch: Batch, versions: Sequence[bytes], slots: IntArray) -> None:
        """Write the samples in k slots of a batch, as far as there is room; it may block.

        An error ends the adding for good, with the warning `CacheNotUsed`.
        """
        unknown = [slot for slot in slots.tolist() if not versions[slot]]
        if unknown:
            url = os.fsdecode(self._catalog.path(int(batch.samples[unknown[0]])))
            self._warn(f"the server tells no strong ETag of {url!r}, so it is not kept")
            slots = np.setdiff1d(slots, unknown)
        if not self._adds or not slots.size:
            return
        chosen = _part(batch, slots)
        digests = self._digests(chosen, [versions[slot] for slot in slots.tolist()])
        contents = [_content(chosen, slot) for slot in range(slots.size)]
        costs = [occupied(content.size + _TRAILER.itemsize) for content in contents]
        try:
            room = self._room.take(sum(costs))
            try:
                for digest, content, cost in zip(digests, contents, costs, strict=True):
                    if cost <= room and self._write(digest, content):
                        room -= cost
            finally:
                if room:
                    self._room.give_back(room)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close what is open. Closing twice is fine."""
        self._adds = False
        self._room.close()

    def _digests(self, batch: Batch, versions: Sequence[bytes]) -> list[bytes]:
        """What identifies n samples: 16 bytes for each."""
        urls, ranges = self._catalog.paths(batch.samples), self._catalog.ranges
        starts = np.zeros_like(batch.sizes) if ranges is None else ranges.starts[batch.samples]
        columns = zip(urls, versions, starts.tolist(), batch.sizes.tolist(), strict=True)
        # The lengths come first, so that no two samples have one text.
        texts = (
            b"%s%d %d %d %d\n%s%s" % (self._store, len(url), len(version), *place, url, version)
            for url, version, *place in columns
        )
        return [blake2b(text, digest_size=16).digest() for text in texts]

    def _path(self, digest: bytes) -> bytes:
        return b"%s/%02x/%s" % (self._layout, digest[0], digest.hex().encode())

    def _read(
        self, batch: Batch, versions: Sequence[bytes], yield_turn: Callable[[], None]
    ) -> Flags:
        """Which samples were read, bool[n]; n is at most FILES_AT_ONCE."""
        digests = self._digests(batch, versions)
        paths = [self._path(digest) for digest in digests]
        with open_files() as fds:
            fds += [-1] * len(paths)
            if not (self._local and open_cached(fds, paths, _READ)):
                yield_turn()
                open_each(fds, paths, _READ)
            found = np.array(fds) >= 0
            slots = np.flatnonzero(found)
            if slots.size:
                present = slots.tolist()
                columns = [digests[slot] for slot in present], [fds[slot] for slot in present]
                found[slots] = self._read_files(_part(batch, slots), *columns, yield_turn)
            for damaged in slots[~found[slots]].tolist():
                self._remove(paths[damaged], int(batch.sizes[damaged]))
        return found

    def _read_files(
        self, batch: Batch, digests: list[bytes], fds: list[int], yield_turn: Callable[[], None]
    ) -> Flags:
        """Which entries are right, bool[n]; their files are open."""
        rest = np.zeros(len(fds), _REST)
        iovecs = np.empty((len(fds), 2), IOVEC)
        iovecs["base"][:, 0] = batch.addresses
        iovecs["len"][:, 0] = batch.sizes
        iovecs["base"][:, 1] = rest.ctypes.data + np.arange(len(fds)) * _REST.itemsize
        iovecs["len"][:, 1] = _TRAILER.itemsize + 1
        sizes = batch.sizes + _TRAILER.itemsize
        known, before = self._checked[batch.samples], self._changes(fds)
        reads = Reads(self._engine, fds, iovecs, sizes, 1)
        reads.read_cached()
        trusted = reads.done & (known == before)
        if not reads.done.all():
            yield_turn()
            reads.read_rest()
        for failed in np.flatnonzero(reads.errors)[:1].tolist():
            path = self._path(digests[failed])
            self._give_up(os_error(int(reads.errors[failed]), path))
        trailer = rest["trailer"]
        wanted = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
        right: Flags = (reads.got == sizes) & (trailer["digest"] == wanted).all(axis=1)
        for slot in np.flatnonzero(right & ~trusted).tolist():
            right[slot] = crc32c(_content(batch, slot)) == trailer["crc"][slot]
        self._checked[batch.samples] = np.where(right, before, 0)
        return right

    def _changes(self, fds: list[int]) -> IntArray:
        """When open files were last changed, int64[n], ns."""
        status = statuses(fds, [b""] * len(fds), self._local)
        times: IntArray = status["ctime_s"] * 10**9 + status["ctime_ns"]
        return times

    def _write(self, digest: bytes, content: npt.NDArray[np.uint8]) -> bool:
        """Whether there is a new entry: not if another process has written it, or does so."""
        path = self._path(digest)
        temporary, written = path + TEMPORARY, False
        trailer = np.array([(np.frombuffer(digest, "<u8"), crc32c(content))], _TRAILER)
        with open_files() as fds:
            try:
                fds += map(os.open, [temporary], [_WRITE], [0o600])  # one bytecode instruction
            except FileExistsError:
                _remove_crashed(temporary)
                return False
            try:
                if not os.path.exists(path):
                    _write_all(fds[0], content)
                    _write_all(fds[0], trailer.view(np.uint8))
                    os.rename(temporary, path)
                    written = True
            finally:
                if not written:
                    os.unlink(temporary)
        return written

    def _remove(self, path: bytes, size: int) -> None:
        """Remove a damaged entry of a sample of `size` bytes."""
        try:
            os.unlink(path)
            self._room.give_back(occupied(size + _TRAILER.itemsize))
        except FileNotFoundError:  # by another process
            pass
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._adds = False
        self._warn(f"{error}; nothing more is added to it")

    def _warn(self, what: str) -> None:
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            where = f"object-store: cache={os.fsdecode(self._directory)!r}"
            warnings.warn(f"{where}: {what}", CacheNotUsed, stacklevel=2)


def _part(batch: Batch, chosen: slice | IntArray) -> Batch:
    """Some slots of a batch."""
    columns = batch.samples[chosen], batch.sizes[chosen], batch.offsets[chosen]
    return Batch(*columns, batch.buffer)


def _content(batch: Batch, slot: int) -> npt.NDArray[np.uint8]:
    """The bytes of a sample: a view of the buffer."""
    start, size = int(batch.offsets[slot]), int(batch.sizes[slot])
    content: npt.NDArray[np.uint8] = batch.buffer[start : start + size]
    return content


def _write_all(fd: int, content: npt.NDArray[np.uint8]) -> None:
    while content.size:
        content = content[os.write(fd, content.data) :]


def _remove_crashed(temporary: bytes) -> None:
    with suppress(FileNotFoundError):
        if os.stat(temporary).st_mtime < time.time() - _CRASHED_S:
            os.unlink(temporary)
