"""Count of the bytes in a directory, shared by all processes of a machine that write there."""

import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TEMPORARY = b".tmp"  # ends the name of a file that is being written

_COUNT = struct.Struct("<QQ")  # bytes in the directory; time of the sweep, seconds since 1970
_CHECK = struct.Struct("<I")  # the CRC-32 of these: a torn count is invalid
_BLOCK = 4096  # bytes; file systems allocate whole blocks
_HOUR, _DAY = 3600.0, 86400.0
_UNUSED = 30 * _DAY  # longer than the kernel needs to note a use (relatime: a day)
_PATIENCE_S, _RETRY_S = 0.05, 0.001  # while another process counts, or sweeps
_KEPT_FREE = 10  # percent of the file system, without a limit


def occupied(nbytes: int) -> int:
    """The space of a file of `nbytes` on a disk, in bytes."""
    return -(-nbytes // _BLOCK) * _BLOCK


class Quota:
    """Grants bytes to write until the directory is full, see `occupied()`.

    The count is a file beside the directories of the written files, `<directory>/*/*`. A killed
    process may leave bytes counted but not written. A full directory is swept, at most once a day:
    files unused for 30 days and temporary files of crashed processes are removed, and the rest is
    counted. Bytes granted to other processes and not yet written are missing in this count, so the
    limit may be exceeded by as much.
    """

    def __init__(self, directory: bytes, limit: int | None) -> None:
        """Open the count; `limit`: bytes; None: leave a tenth of the file system free.

        Raises:
            OSError: the count cannot be opened, read or written.
        """
        self._directory = directory
        self._limit = limit
        self._lock = threading.Lock()  # flock(2) does not exclude the threads of one process
        self._fd = os.open(directory + b"/count", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, nbytes: int) -> int:
        """Grant up to `nbytes`; return the granted bytes, 0 while another process sweeps."""
        with self._locked() as locked:
            if not locked:
                return 0
            used, swept = self._load()
            if self._left(used) < nbytes and abs(time.time() - swept) > _DAY:
                used, swept = self._sweep()
            granted = min(nbytes, self._left(used))
            self._store(used + granted, swept)
            return granted

    def give_back(self, nbytes: int) -> None:
        """Give back bytes that were granted but not written, or of a removed file."""
        with self._locked() as locked:
            if locked:  # otherwise the bytes stay counted until the next sweep
                used, swept = self._load()
                self._store(max(used - nbytes, 0), swept)

    def close(self) -> None:
        """Close the count. Closing twice is fine."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _left(self, used: int) -> int:
        if self._limit is not None:
            return max(self._limit - used, 0)
        status = os.statvfs(self._directory)
        kept = status.f_blocks * _KEPT_FREE // 100
        return max(status.f_bavail - kept, 0) * status.f_frsize

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Lock out others; yields False if another keeps the lock (sweeps, or was stopped)."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (locked := self._try_lock()) and time.monotonic() < deadline:
            time.sleep(_RETRY_S)
        try:
            yield locked
        finally:
            if locked:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
                self._lock.release()

    def _try_lock(self) -> bool:
        if not self._lock.acquire(blocking=False):
            return False
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            self._lock.release()
            if not isinstance(error, BlockingIOError):
                raise
            return False
        return True

    def _load(self) -> tuple[int, int]:
        """Load the used bytes and the time of the sweep; sweep now without a valid count."""
        record = os.pread(self._fd, _COUNT.size + _CHECK.size, 0)
        count, check = record[: _COUNT.size], record[_COUNT.size :]
        if len(check) == _CHECK.size and check == _CHECK.pack(zlib.crc32(count)):
            used, swept = _COUNT.unpack(count)
            return used, swept
        return self._sweep()

    def _store(self, used: int, swept: int) -> None:
        count = _COUNT.pack(used, swept)
        os.pwrite(self._fd, count + _CHECK.pack(zlib.crc32(count)), 0)

    def _sweep(self) -> tuple[int, int]:
        """Remove unused files, and count the rest. Returns as `_load()`."""
        now, used = time.time(), 0
        directories = [entry.path for entry in os.scandir(self._directory) if entry.is_dir()]
        for entry in (entry for path in directories for entry in os.scandir(path)):
            with suppress(FileNotFoundError):  # renamed by its writer
                status = entry.stat(follow_symlinks=False)
                patience = _HOUR if entry.name.endswith(TEMPORARY) else _UNUSED
                if status.st_atime < now - patience:  # at first, when it was written
                    os.unlink(entry.path)
                else:
                    used += occupied(status.st_size)
        return used, int(now)
