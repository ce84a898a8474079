"""What the extents of a map hold on the device, beside what the files hold."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from .device import UnsupportedStorage, superblock
from .extent_map import ExtentMap, IntArray
from .fiemap import Extent
from .parallel import in_threads
from .report import BadInputError, reason
from .survey import Tick

_PIECE_BYTES = 1 << 20
_FILES_PER_TASK = 16


def compare(
    loaded: ExtentMap, files: IntArray, root: bytes, path: str, threads: int, tick: Tick
) -> dict[int, str]:
    """File -> where the device holds something else, for those of `files` where it does.

    Args:
        loaded: the map.
        files: int64[k]; they are mapped, and what has no extent is compared with zeros.
        root: where the files are.
        path: what to read the extents from, around the page cache: the device that the file system
            is on, the disk that this is a part of, or an image of one of them.
        threads: how many read.
        tick: is told how many files are done.

    Raises:
        BadInputError: `path` may not be read, or does not hold the map's file system.
        OSError: the device cannot be opened or read.
    """
    wrong: dict[int, str] = {}
    tasks = [files[at : at + _FILES_PER_TASK] for at in range(0, len(files), _FILES_PER_TASK)]
    with (
        _device(path) as fd,
        in_threads(threads, _Comparison(loaded, root, path, fd).run, tasks) as parts,
    ):
        for done, part in enumerate(parts, 1):
            wrong |= part
            tick(min(done * _FILES_PER_TASK, len(files)))
    return wrong


@contextmanager
def _device(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except PermissionError:
        raise BadInputError(
            f"{path} may not be read: be root or in the group that owns it, or give --uri with an "
            "image of it"
        ) from None
    try:
        yield fd
    finally:
        os.close(fd)


class _Comparison:
    """Compares files with an open device, in any number of threads."""

    def __init__(self, loaded: ExtentMap, root: bytes, path: str, fd: int) -> None:
        self._map = loaded
        self._root = root
        self._path = path
        self._fd = fd
        self._start = self._file_system_start()

    def _file_system_start(self) -> int:
        """Bytes from the beginning of the device to that of the file system."""
        file_system = self._map.file_system
        family = "xfs" if file_system.type == "xfs" else "ext"
        for start in sorted({0, self._map.device.start}):
            with suppress(UnsupportedStorage):
                if superblock(self._fd, start) == (family, file_system.uuid):
                    return start
        raise BadInputError(
            f"{self._path} does not hold the map's file system, {file_system.type} with the UUID "
            f"{file_system.uuid}; give --uri with the device, the disk or an image that does"
        )

    def run(self, files: IntArray) -> dict[int, str]:
        """File -> where it differs."""
        with mmap.mmap(-1, _PIECE_BYTES) as memory:  # O_DIRECT wants it aligned
            differences = {file: self._difference(file, memory) for file in files.tolist()}
        return {file: why for file, why in differences.items() if why is not None}

    def _difference(self, file: int, memory: mmap.mmap) -> str | None:
        path = os.path.join(self._root, self._map.name(file))
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last].tolist()
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            return reason(error)
        try:
            for piece in _pieces(extents, int(self._map.sizes[file])):
                if piece[1] < 0:
                    place = _first_data(fd, piece)
                else:
                    place = self._first_difference(fd, piece, memory)
                if place is not None:
                    return f"byte {place} is another on the device ({self._address(piece, place)})"
        finally:
            os.close(fd)
        return None

    def _first_difference(self, fd: int, piece: Extent, memory: mmap.mmap) -> int | None:
        logical, physical, length = piece
        own = os.pread(fd, length, logical)
        whole = -(-length // self._map.device.logical_block_size)
        with memoryview(memory)[: whole * self._map.device.logical_block_size] as target:
            got = os.preadv(self._fd, [target], self._start + physical)
        if got < length:
            raise OSError(errno.EIO, f"only {got} of {length} bytes at {physical}", self._path)
        if memory[:length] == own:
            return None
        pairs = np.frombuffer(memory[: len(own)], np.uint8) != np.frombuffer(own, np.uint8)
        return logical + int(pairs.argmax() if pairs.any() else len(own))

    def _address(self, piece: Extent, place: int) -> str:
        if piece[1] < 0:
            return "in a hole of the map, which reads as zeros"
        return f"byte {self._start + piece[1] + place - piece[0]} of {self._path}"


def _pieces(extents: Iterable[Extent], size: int) -> Iterator[Extent]:
    """The whole file in its order, holes too, which are as unwritten extents: physical is -1."""
    end = 0
    for logical, physical, length in extents:
        if logical >= size:  # space reserved beyond the end
            break
        if logical > end:
            yield end, -1, logical - end
        end = min(logical + length, size)
        step = _PIECE_BYTES if physical >= 0 else length
        for at in range(logical, end, step):
            address = physical + at - logical if physical >= 0 else -1
            yield at, address, min(step, end - at)
    if end < size:
        yield end, -1, size - end


def _first_data(fd: int, piece: Extent) -> int | None:
    """Where in a range the file has the first byte that is not zero."""
    place, end = piece[0], piece[0] + piece[2]
    while place < end:
        try:
            place = os.lseek(fd, place, os.SEEK_DATA)  # a hole of terabytes is skipped at once
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise
        own = os.pread(fd, max(0, min(_PIECE_BYTES, end - place)), place)
        if rest := own.lstrip(b"\0"):
            return place + len(own) - len(rest)
        if not own:
            return None
        place += len(own)
    return None
