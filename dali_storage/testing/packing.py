"""Test samples in ranges of containers."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.ranges import Ranges

SIZES = (0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 131071, 131072, 131073, (3 << 20) + 17)
"""Sizes of the test samples in bytes: around sectors, blocks, pages and commands."""

# The container of each sample, and where it starts in it. In the first they are at odd positions,
# next to each other or overlapping; in the second at multiples of 512, in the third of 4096.
_CONTAINERS = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0, 1, 2, 2, 2])
_STARTS = np.array(
    [1024, 77, 78, 300, 512, 812, 4907, 1536, 9001, 66048, 4096, 135168, 270336], np.int64
)
_LENGTHS = 74_660, 197_119, 3_416_081  # the last range of the second and third ends with the file
_HOLE = slice(1 << 20, 2 << 20)  # of the third, so that a range has several extents


def packed_contents() -> list[bytes]:
    """Return the bytes of every sample."""
    containers = _containers()
    return [
        containers[container][start : start + size]
        for container, start, size in zip(_CONTAINERS, _STARTS, SIZES, strict=True)
    ]


def write_packed(directory: Path) -> Catalog:
    """Write the containers to `directory`/class; their times are in the past."""
    names = []
    for number, content in enumerate(_containers()):
        path = directory / "class" / f"container{number}"
        with open(path, "wb") as file:
            file.write(content[: _HOLE.start])
            if content[_HOLE]:
                file.seek(_HOLE.stop)
            file.write(content[_HOLE.stop :])
            file.flush()
            os.fsync(file.fileno())  # a file system may allocate later, and change a time
        os.utime(path, (1, 1))  # every later change then changes the time
        names.append(b"class/container%d" % number)
    files = Catalog.from_names(names, [], os.fsencode(directory))
    sizes: IntArray = np.array(SIZES, np.int64)
    ranges = Ranges.of_columns(_CONTAINERS, _STARTS, sizes)
    labels = np.arange(len(SIZES), dtype=np.int32)
    return replace(files, labels=labels, ranges=ranges)


def _containers() -> list[bytes]:
    random = np.random.default_rng(21)
    containers = [bytearray(random.bytes(length)) for length in _LENGTHS]
    containers[2][_HOLE] = bytes(_HOLE.stop - _HOLE.start)
    return [bytes(container) for container in containers]
