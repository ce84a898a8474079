"""The places of records in TFRecord files: from index files, or from the files themselves."""

import os
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import BinaryIO

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog, open_regular
from ...contract.errors import named
from ..files import LOCAL, MOST, Files, assembled, noting_states, sizes
from .record import HEADER, OVERHEAD

_BLOCK = 1 << 16  # bytes; one read takes as long as reads of the headers of 16 records
_NUMBERS = re.compile(rb"(?:\s*+[+-]?[0-9]++)*+")  # as in C++
_FILES = 16  # files read at once: each waits for the storage most of the time

_Columns = tuple[IntArray, IntArray]
"""The starts and sizes of the records of a file, in bytes."""


def find(
    paths: Sequence[bytes], index_paths: Sequence[bytes] | None, files: Files = LOCAL
) -> Catalog:
    """Find the records of TFRecord files, in the order of the files and of their indexes.

    Args:
        paths: the paths of the files.
        index_paths: an index for each file; None: read the lengths of all records from the files.
        files: reads files and indexes.

    Raises:
        ValueError: there are no records; an index names bytes beyond its file; a file without an
            index is not a TFRecord, or ends within a record.
        OSError: a file or an index cannot be read. Files with an index need not exist; objects
            must.
    """
    found = files.catalog(paths)
    if index_paths is None:
        found = noting_states(found)
        with ThreadPoolExecutor(_FILES) as pool:
            columns = list(pool.map(scan, paths))
    else:
        ends = sizes(found, [FileNotFoundError]).tolist()  # as in DALI: an error at its turn
        with files.opened(index_paths) as opened:
            columns = [
                _within(path, end, index, read_index(index, next(opened)))
                for path, end, index in zip(paths, ends, index_paths, strict=True)
            ]
    why = "the files are empty" if index_paths is None else "no index begins with two integers"
    return assembled(found, columns, f"has no records: {why}")


def _within(path: bytes, end: int, index_path: bytes, columns: _Columns) -> _Columns:
    starts, lengths = columns
    wrong = (starts < 0) | (lengths < 0) | (starts > end - lengths)
    for record in np.flatnonzero(wrong)[:1].tolist():
        has = f"{lengths[record]:,} bytes at {starts[record]:,} of {os.fsdecode(path)!r}"
        why = "cannot be so long" if end == MOST else f"has {end:,} bytes"
        raise ValueError(
            f"index_path {os.fsdecode(index_path)!r}, line {record + 1}: {has}, which {why}; "
            "rebuild the index, or leave out index_path"
        )
    return columns


def read_index(path: bytes, file: BinaryIO) -> _Columns:
    """Read the pairs of an index file: offset and size, separated by white space.

    As in DALI, reading ends at the first word that is not an int64, and the last number is ignored
    if their count is odd.
    """
    with named(path):
        text = file.read()
    numbers = _parse(text)
    count = numbers.size // 2 * 2
    return numbers[:count:2].copy(), numbers[1:count:2].copy()


def _parse(text: bytes) -> IntArray:
    if text.strip() and not text.translate(None, b"0123456789 \t\n\v\f\r"):
        numbers: IntArray = np.fromstring(text, np.int64, sep=" ")
        if numbers.max() < MOST:  # larger numbers become MOST
            return numbers
    match = _NUMBERS.match(text)
    words = re.findall(rb"[+-]?[0-9]+", match[0] if match else b"")
    fitting = takewhile(lambda number: -MOST - 1 <= number <= MOST, map(int, words))
    return np.fromiter(fitting, np.int64)


def scan(path: bytes, progress: Callable[[int], object] = lambda position: None) -> _Columns:
    """Find the records of a file; only their lengths are read.

    `progress` is called with positions in the file, in bytes.

    Raises:
        ValueError: the file is not a TFRecord, or ends within a record.
        OSError: the file cannot be read.
    """
    starts, at = array("q"), 0
    with open_regular(path) as file, named(path):
        fd, end = file.fileno(), os.fstat(file.fileno()).st_size
        # Bytes read ahead of a length would be part of a record, and not needed.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        block, base, ahead = b"", 0, _BLOCK
        while at + OVERHEAD <= end:
            if at + HEADER.size > base + len(block):
                block, base = os.pread(fd, ahead, at), at
                progress(at)
                if len(block) < HEADER.size:
                    break  # the file has become shorter
            length, _ = HEADER.unpack_from(block, at - base)
            starts.append(at)
            at += length + OVERHEAD
            ahead = HEADER.size if length > _BLOCK // 16 else _BLOCK
    if at != end:
        number, last = (len(starts) - 1, starts[-1]) if at > end else (len(starts), at)
        what = f"record {number} at {last:,} goes beyond the end of the file at {end:,}"
        remedy = "the file is truncated, compressed or not a TFRecord; write it again"
        raise ValueError(f"{os.fsdecode(path)!r}: {what}; {remedy}")
    bounds = np.append(starts, end)
    return bounds[:-1], np.diff(bounds)


def index(path: bytes, progress: Callable[[int], object]) -> Iterator[bytes]:
    """Return the lines of the index of a file, as by DALI's tfrecord2idx; raises as `scan()`."""
    starts, sizes = scan(path, progress)
    return (b"%d %d\n" % pair for pair in zip(starts.tolist(), sizes.tolist(), strict=True))


def matches(head: bytes) -> bool:
    """Return whether `head` may begin a TFRecord: a length below 2**40, and no gzip or zip."""
    others = b"\x1f\x8b\x08", b"PK\x03\x04"
    return len(head) >= OVERHEAD and head[5:8] == bytes(3) and not head.startswith(others)
