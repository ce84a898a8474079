"""Comparison of the bytes in a map's extents on the device with the files."""

import errno
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import FileIO

import numpy as np

from .console import BadInputError, Tick, reason
from .device import UnsupportedStorage
from .extent_map import ExtentMap, IntArray
from .fiemap import Extent
from .file_system import superblock
from .inspection import open_file
from .survey import in_threads

_PIECE_BYTES = 1 << 20
_FILES_PER_TASK = 16


def compare(
    extent_map: ExtentMap, files: IntArray, root: bytes, path: str, threads: int, tick: Tick
) -> dict[int, str]:
    """Compare files with the device; return a dict: index of a file -> its first difference.

    Reads the extents from `path` with O_DIRECT: the device of the file system, its disk, or an
    image of one of them. Holes are compared with zeros. All of `files`, int64[k], are mapped.
    `tick` is called with the number of completed files.

    Raises:
        BadInputError: no permission to read `path`, or no file system of the map at `path`.
        OSError: the device cannot be opened or read.
    """
    wrong: dict[int, str] = {}
    tasks = [files[i : i + _FILES_PER_TASK] for i in range(0, len(files), _FILES_PER_TASK)]
    with (
        _open(path) as device,
        in_threads(threads, _Comparison(extent_map, root, device).run, tasks) as parts,
    ):
        for done, part in enumerate(parts, 1):
            wrong |= part
            tick(min(done * _FILES_PER_TASK, len(files)))
    return wrong


def _open(path: str) -> FileIO:
    try:
        return FileIO(path, opener=lambda name, flags: os.open(name, flags | os.O_DIRECT))
    except PermissionError:
        raise BadInputError(
            f"no permission to read {path}: run as root or as a member of its group, or give an "
            "image of it with --uri"
        ) from None


class _Comparison:
    """Compares files with an open device; for any number of threads."""

    def __init__(self, extent_map: ExtentMap, root: bytes, device: FileIO) -> None:
        self._map = extent_map
        self._root = root
        self._path = device.name
        self._fd = device.fileno()
        file_system = extent_map.file_system
        family = "xfs" if file_system.type == "xfs" else "ext"
        for start in sorted({0, extent_map.device.start}):
            with suppress(UnsupportedStorage):
                if superblock(self._fd, start) == (family, file_system.uuid):
                    self._start = start  # of the file system on the device, bytes
                    return
        raise BadInputError(
            f"{self._path} does not hold the map's file system, {file_system.type} with UUID "
            f"{file_system.uuid}; give the right device, disk or image with --uri"
        )

    def run(self, files: IntArray) -> dict[int, str]:
        """Compare files; return a dict: index of a file -> its first difference."""
        with mmap.mmap(-1, _PIECE_BYTES) as memory:  # O_DIRECT needs aligned memory
            found = ((file, self._difference(file, memory)) for file in files.tolist())
            return {file: why for file, why in found if why is not None}

    def _difference(self, file: int, memory: mmap.mmap) -> str | None:
        path = os.path.join(self._root, self._map.name(file))
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last].tolist()
        try:
            fd = open_file(path)
        except OSError as error:
            return reason(error)
        try:
            for piece in _pieces(extents, int(self._map.sizes[file])):
                if piece[1] < 0:
                    offset = _first_data(fd, piece)
                    where = "in a hole of the map, which reads as zeros"
                elif (offset := self._first_difference(fd, piece, memory)) is not None:
                    where = f"byte {self._start + piece[1] + offset - piece[0]} of {self._path}"
                if offset is not None:
                    return f"byte {offset} differs on the device ({where})"
        finally:
            os.close(fd)
        return None

    def _first_difference(self, fd: int, piece: Extent, memory: mmap.mmap) -> int | None:
        logical, physical, length = piece
        own = os.pread(fd, length, logical)
        block = self._map.device.logical_block_size
        with memoryview(memory)[: -(-length // block) * block] as target:
            got = os.preadv(self._fd, [target], self._start + physical)
        if got < length:
            what = f"short read: {got} of {length} bytes at offset {self._start + physical}"
            raise OSError(errno.EIO, what, self._path)
        if memory[:length] == own:
            return None
        pairs = np.frombuffer(memory[: len(own)], np.uint8) != np.frombuffer(own, np.uint8)
        return logical + int(pairs.argmax() if pairs.any() else len(own))


def _pieces(extents: Iterable[Extent], size: int) -> Iterator[Extent]:
    """Divide a whole file into pieces; in holes and unwritten extents, physical is -1."""
    end = 0
    for logical, physical, length in extents:
        if logical >= size:  # space reserved beyond the end
            break
        if logical > end:
            yield end, -1, logical - end
        end = min(logical + length, size)
        step = _PIECE_BYTES if physical >= 0 else length
        for offset in range(logical, end, step):
            address = physical + offset - logical if physical >= 0 else -1
            yield offset, address, min(step, end - offset)
    if end < size:
        yield end, -1, size - end


def _first_data(fd: int, piece: Extent) -> int | None:
    """Find the offset of the first nonzero byte in a range of a file."""
    offset, end = piece[0], piece[0] + piece[2]
    while offset < end:
        try:
            offset = os.lseek(fd, offset, os.SEEK_DATA)  # skips a hole of terabytes at once
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            raise
        own = os.pread(fd, max(0, min(_PIECE_BYTES, end - offset)), offset)
        if rest := own.lstrip(b"\0"):
            return offset + len(own) - len(rest)
        if not own:
            return None
        offset += len(own)
    return None
