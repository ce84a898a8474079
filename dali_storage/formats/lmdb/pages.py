"""LMDB files: finds the values by a walk over the pages of the tree.

The layout is that of LMDB 0.9's mdb.c on 64-bit little-endian machines. A file is pages of one
size. Each begins with 16 bytes: its number (uint64), 2 bytes without meaning here, its flags
(uint16), and the end of its list of nodes (uint16). Two meta pages come first; the one of the later
transaction is valid:

    16   uint32   0xBEEFC0DE
    20   uint32   the version: 1
    40   MDB_db   the free pages; its first field is the page size
    88   MDB_db   the main database
    136  uint64   the last page
    144  uint64   the transaction

A page of the tree has a list of nodes from byte 16 on (uint16 each, bytes into the page), in the
order of the keys. A node is 4 uint16 (two of a number, flags, size of the key), the key, and a
value. The number and the flags of a node in a branch are the number of a page. In a leaf, the
number is the size of a value, which follows the key; or, by a flag, lies in pages of its own, and
their number (uint64) follows the key. All leaves are equally deep.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import open_regular, state_of
from ...contract.errors import ContainerChangedError, named

_MAGIC = struct.pack("<I", 0xBEEFC0DE)
_START = struct.Struct("<H4x4sI")  # from byte 10 of a meta page: flags, magic, version
_STATE = struct.Struct("<I44x4xHH24xQQQQ")
_STATE_AT = 40
_HEAD = (1 << 16) + _STATE_AT + _STATE.size  # bytes with both meta pages, however large pages are
_FIRST = 64  # bytes of a value
GUARDED = 2 * _STATE.size + 2 * _FIRST
"""Bytes in all."""
_HEADER = 16
_BRANCH, _LEAF, _META = 1, 2, 8
_KINDS = 0x6F  # the flags for the kind of a page
_APART, _DATABASE, _SEVERAL = 1, 2, 4  # flags of nodes
_SORTED_VALUES = 4  # a flag of a database: its keys have several values
_NONE = (1 << 64) - 1  # the root of an empty tree
_DEEPEST = 32
_NODE = 10  # bytes of the smallest node, with its entry in the list
_READS = 16  # at once: each waits for the storage most of the time
_PAGES = 64  # read and parsed at a time
_Parse: TypeAlias = Callable[..., tuple[NDArray[Any], ...]]
_DAMAGED = "the file is damaged or truncated: copy it again (mdb_copy), or write it again"
_OTHER = "dump it there (mdb_dump), and load it here (mdb_load of LMDB 0.9)"


class Meta(NamedTuple):
    """A meta page, different after each transaction of a file."""

    page_size: int
    flags: int
    depth: int
    entries: int
    root: int
    last: int
    transaction: int


class Values(NamedTuple):
    """The places of a file's n values, in the order of their keys, and the state of the file.

    Attributes:
        starts: int64[n], bytes into the file.
        sizes: int64[n], bytes.
        guards: the positions and the bytes of the file at `guarded()`.
        nbytes: the size of the file.
        changed_ns: its time of modification.
    """

    starts: IntArray
    sizes: IntArray
    guards: list[tuple[int, bytes]]
    nbytes: int
    changed_ns: int


def guarded(page_size: int, starts: IntArray, sizes: IntArray) -> list[tuple[int, int]]:
    """Return positions and sizes of bytes that identify the state of a file, at most `GUARDED`.

    These are in both meta pages, of which every transaction writes one, and at the start of the
    first and the last value: two files may have the same meta pages.
    """
    found = [(at + _STATE_AT, _STATE.size) for at in (0, page_size)]
    rows = [0, -1] if starts.size else []
    ends = zip(starts[rows].tolist(), sizes[rows].tolist(), strict=True)
    return found + [(at, min(size, _FIRST)) for at, size in ends if size]


def matches(head: bytes) -> bool:
    """Return whether `head` begins an LMDB file, even one refused by `meta()`."""
    return head[16:20] in (_MAGIC, _MAGIC[::-1]) or head[12:16] == _MAGIC


def meta(head: bytes) -> Meta:
    """Return the valid meta page of a file, from its first `_HEAD` bytes, or fewer.

    Raises:
        ValueError: the file is not an LMDB, or an unsupported one; has the remedy.
    """
    if not matches(head):
        raise ValueError("not an LMDB: the magic number is missing; give the path of a data.mdb")
    if head[16:20] != _MAGIC:
        raise ValueError(f"written by a 32-bit machine, or in another byte order; {_OTHER}")
    first = _meta(head)
    if first.page_size not in {1 << bits for bits in range(8, 17)}:
        raise ValueError(f"its page size is {first.page_size:,}; {_DAMAGED}")
    second = _meta(head[first.page_size :])
    found = second if second.transaction > first.transaction else first
    if found.depth > _DEEPEST or found.page_size != first.page_size:
        raise ValueError(f"its meta page is wrong; {_DAMAGED}")
    if found.flags & _SORTED_VALUES:
        what = "its keys have several values each (MDB_DUPSORT)"
        raise ValueError(f"{what}; write a database with one key for each value")
    return found


def _meta(page: bytes) -> Meta:
    if len(page) < _STATE_AT + _STATE.size:
        raise ValueError(f"it ends within its meta pages; {_DAMAGED}")
    flags, magic, version = _START.unpack_from(page, 10)
    if magic != _MAGIC or not flags & _META:
        raise ValueError(f"a meta page is missing; {_DAMAGED}")
    if version != 1:
        raise ValueError(f"its format is version {version}, not 1 as of LMDB 0.9; {_OTHER}")
    return Meta._make(_STATE.unpack_from(page, _STATE_AT))


def scan(path: bytes, progress: Callable[[int], object] = lambda position: None) -> Values:
    """Find the values of a file by its tree; `progress` is called with positions, in bytes.

    Raises:
        ValueError: as `meta()`; the file has databases with names, or is damaged.
        ContainerChangedError: the file was written meanwhile.
        OSError: the file cannot be read.
    """
    with open_regular(path) as file, named(path):
        fd, status = file.fileno(), os.fstat(file.fileno())
        # Bytes read ahead of a page would mostly be values.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        head, wrong = os.pread(fd, _HEAD, 0), None
        try:
            found = meta(head)
            columns = _walk(fd, found, status.st_size, progress, _leaves)
            places = guarded(found.page_size, *columns)
            guards = [(at, os.pread(fd, nbytes, at)) for at, nbytes in places]
        except ValueError as error:
            wrong = str(error)
        # The pages of a transaction are used again only after a later one has been committed.
        is_same = head == os.pread(fd, _HEAD, 0) and state_of(status) == state_of(os.fstat(fd))
    if not is_same:
        what = "the database was written while its pages were read; try again without a writer"
        raise ContainerChangedError(path, what)
    if wrong is not None:
        raise ValueError(f"{os.fsdecode(path)!r}: {wrong}")
    return Values(*columns, guards, status.st_size, status.st_mtime_ns)


def keys(path: bytes) -> dict[int, bytes]:
    """Return the keys of a file that `scan()` accepts, by the starts of their values."""
    with open_regular(path) as file, named(path):
        fd, end = file.fileno(), os.fstat(file.fileno()).st_size
        starts, found = _walk(fd, meta(os.pread(fd, _HEAD, 0)), end, int, _leaf_keys)
    return dict(zip(starts.tolist(), found.tolist(), strict=True))


def _walk(
    fd: int, meta: Meta, end: int, progress: Callable[[int], object], leaves: _Parse
) -> tuple[IntArray, NDArray[Any]]:
    """Find the starts of the values of a file of `end` bytes, and another column of `leaves`."""
    none = np.empty(0, np.int64)
    if meta.root == _NONE and not meta.entries:
        return none, none
    last = min(meta.last, end // meta.page_size - 1)
    if not 2 <= meta.root <= last or not meta.depth:
        raise ValueError(f"its root is page {meta.root:,}, but its last page {last:,}; {_DAMAGED}")
    pages = np.array([meta.root])
    with ThreadPoolExecutor(_READS) as pool:
        for above in reversed(range(meta.depth)):
            order = np.argsort(pages)
            ascending = pages[order]
            _refuse((ascending < 2) | (ascending > last), ascending, "does not exist")
            _refuse(ascending[1:] == ascending[:-1], ascending, "is twice in the tree")
            parts = np.split(ascending, range(_PAGES, pages.size, _PAGES))
            parse = _branches if above else partial(leaves, last=last)
            found: list[tuple[NDArray[Any], ...]] = []
            for nodes in pool.map(partial(_read, fd, meta, parse), parts):
                progress(0 if above else int(parts[len(found)][-1]) * meta.page_size)
                found.append(nodes)
            counts, *columns = map(np.concatenate, zip(*found, strict=True))
            rows = _in_order(order, counts)
            pages = columns[0][rows]
    if pages.size != meta.entries:
        what = f"it has {pages.size:,} values, but its meta page says {meta.entries:,}"
        raise ValueError(f"{what}; {_DAMAGED}")
    return pages, columns[1][rows]


def _read(fd: int, meta: Meta, parse: _Parse, pages: IntArray) -> tuple[NDArray[Any], ...]:
    """Read pages with ascending numbers, neighbours in one read, and parse them."""
    size = meta.page_size
    block = np.empty((pages.size, size), np.uint8)
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    for first, stop in pairwise([0, *cuts.tolist(), pages.size]):
        part = block[first:stop].reshape(-1)
        if os.preadv(fd, [part.data], int(pages[first]) * size) < part.size:
            raise ValueError(f"it became shorter while it was read; {_DAMAGED}")
    return parse(block, pages)


def _branches(block: NDArray[np.uint8], pages: IntArray) -> tuple[IntArray, ...]:
    """Return the number of nodes of each page, int64[n], and the target page of each node."""
    counts, _, _, (low, high, flags, _) = _nodes(block, pages, _BRANCH)
    return counts, low | high << 16 | flags << 32


def _leaves(block: NDArray[np.uint8], pages: IntArray, last: int) -> tuple[IntArray, ...]:
    """Return the number of values of each page, int64[n], and each value's start and size."""
    counts, rows, nodes, (low, high, flags, keys) = _nodes(block, pages, _LEAF)
    size, numbers = block.shape[1], pages[rows]
    for flag, what in (_DATABASE, "databases with names"), (_SEVERAL, "several values for a key"):
        if (flags & flag).any():
            raise ValueError(f"it has {what}; write one database with a key for each value")
    sizes, starts = low | high << 16, nodes + 8 + keys
    apart = flags & _APART != 0
    outside = starts + np.where(apart, 8, sizes) > size
    _refuse(outside, numbers, "has a value beyond its end")
    where = (rows[apart] * size + starts[apart])[:, None] + np.arange(8)
    first = block.ravel()[where].view("<u8")[:, 0]
    # Their numbers may be as large as 2**64 - 1.
    room = last + 1 - np.minimum(first, last + 1).astype(np.int64)
    outside = (first < 2) | (room * size < sizes[apart] + _HEADER)
    _refuse(outside, numbers[apart], "has a value in pages that do not exist")
    starts += numbers * size
    starts[apart] = first.astype(np.int64) * size + _HEADER
    return counts, starts, sizes


def _leaf_keys(block: NDArray[np.uint8], pages: IntArray, last: int) -> tuple[NDArray[Any], ...]:
    """Return what `_leaves()` returns, with keys, bytes objects, in the place of the sizes."""
    counts, starts, _ = _leaves(block, pages, last)
    _, rows, nodes, (*_, sizes) = _nodes(block, pages, _LEAF)
    first, content = rows * block.shape[1] + nodes + 8, block.tobytes()
    spans = zip(first.tolist(), (first + sizes).tolist(), strict=True)
    found = np.empty(first.size, object)
    found[:] = [content[start:stop] for start, stop in spans]
    return counts, starts, found


def _nodes(
    block: NDArray[np.uint8], pages: IntArray, kind: int
) -> tuple[IntArray, IntArray, IntArray, list[IntArray]]:
    """Parse the nodes of pages, in order.

    Returns:
        int64[pages], the number of nodes of each page; for each node its page in the block, its
        position in the page (bytes), and its 4 words.
    """
    words: NDArray[Any] = block.view("<u2")
    _refuse(block.view("<u8")[:, 0] != pages, pages, "has the number of another")
    _refuse(words[:, 5] & _KINDS != kind, pages, "is of another kind")
    ends = words[:, 6].astype(np.int64)
    counts = (ends - _HEADER) >> 1
    room = block.shape[1] - _HEADER
    _refuse((ends < _HEADER) | (ends % 2 != 0) | (counts * _NODE > room), pages, "has a wrong list")
    rows = np.repeat(np.arange(pages.size), counts)
    nth = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    nodes = words[rows, _HEADER // 2 + nth].astype(np.int64)
    wrong = (nodes % 2 != 0) | (nodes < ends[rows]) | (nodes > block.shape[1] - 8)
    _refuse(wrong, pages[rows], "has a node outside of it")
    at = (rows * block.shape[1] + nodes) >> 1
    flat = words.ravel()
    return counts, rows, nodes, [flat[at + word].astype(np.int64) for word in range(4)]


def _in_order(order: IntArray, counts: IntArray) -> IntArray:
    """Return the node at each place if pages with `counts` nodes are reordered by `order`."""
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    firsts, counts = (np.cumsum(counts) - counts)[ranks], counts[ranks]
    return np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


def _refuse(wrong: NDArray[np.bool_], pages: IntArray, what: str) -> None:
    for row in np.flatnonzero(wrong)[:1].tolist():
        raise ValueError(f"page {pages[row]:,} {what}; {_DAMAGED}")
