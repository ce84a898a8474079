"""The files of a cache, one for each sample. All processes of a machine share them."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from google_crc32c import value as crc32c

from ....contract.errors import named
from ...files.opening import open_files
from .quota import TEMPORARY, Quota, occupied

_LAYOUT = b"objects-1"  # a new layout needs a new name: old and new may share a directory
_HINT = (
    ": the option cache must name a directory on a local disk, writable for this user, and without "
    "the cache of another user"
)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_CRASHED_S = 3600.0  # a temporary file so old will never be renamed

# An entry is a file: the bytes of the sample, and a trailer.
TRAILER = np.dtype([("digest", "<u8", 2), ("crc", "<u4")])


class Entries:
    """The entries of a cache directory, each written under a temporary name, then renamed.

    A full directory is not extended. An epoch uses every sample once, so no entry is worth more
    than another. `Quota` removes unused entries.

    Attributes:
        root: the directory of the cache.
        directory: the directory of the entries, below `root`.
    """

    def __init__(self, root: bytes, limit: int | None, store: bytes) -> None:
        """Create the directories; the arguments are as for `Cache`."""
        self.root, self.directory = root, os.path.join(root, _LAYOUT)
        self._store = blake2b(store, digest_size=16).digest()
        parts = (b"%s/%x" % (self.directory, number) for number in range(16))
        with named(root, _HINT):
            for path in (root, self.directory, *parts):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)  # the bytes of objects that others may not read
            self._room = Quota(self.directory, limit)

    def digest(self, url: bytes, version: bytes, start: int, size: int) -> bytes:
        """Compute the identity of a range of an object's bytes: 16 bytes."""
        # The lengths come first, so that no two samples have one text.
        numbers = len(url), len(version), start, size
        text = b"%s%d %d %d %d\n%s%s" % (self._store, *numbers, url, version)
        return blake2b(text, digest_size=16).digest()

    def path(self, digest: bytes) -> bytes:
        return b"%s/%x/%s" % (self.directory, digest[0] >> 4, digest.hex().encode())

    def add(self, digests: Sequence[bytes], contents: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Write n samples, as far as there is room.

        Raises:
            OSError: the disk refuses. Entries written until then stay.
        """
        costs = [occupied(content.size + TRAILER.itemsize) for content in contents]
        room = self._room.take(sum(costs))
        try:
            for digest, content, cost in zip(digests, contents, costs, strict=True):
                if cost <= room and self._write(digest, content):
                    room -= cost
        finally:
            if room:
                self._room.give_back(room)

    def remove(self, path: bytes, size: int) -> None:
        """Remove a damaged entry of a sample of `size` bytes, if still present."""
        with suppress(FileNotFoundError):  # by another process
            os.unlink(path)
            self._room.give_back(occupied(size + TRAILER.itemsize))

    def close(self) -> None:
        """Close the quota. Closing twice is fine."""
        self._room.close()

    def _write(self, digest: bytes, content: npt.NDArray[np.uint8]) -> bool:
        """Write an entry unless another process has, or does; return whether written."""
        path = self.path(digest)
        temporary, written = path + TEMPORARY, False
        trailer = np.array([(np.frombuffer(digest, "<u8"), crc32c(content))], TRAILER)
        with open_files() as fds:
            try:
                fds.append(os.open(temporary, _WRITE, 0o600))
            except FileExistsError:
                with suppress(FileNotFoundError):
                    if os.stat(temporary).st_mtime < time.time() - _CRASHED_S:
                        os.unlink(temporary)
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


def _write_all(fd: int, content: npt.NDArray[np.uint8]) -> None:
    while content.size:
        content = content[os.write(fd, content.data) :]
