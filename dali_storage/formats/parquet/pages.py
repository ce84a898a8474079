"""The pages of a column of bytes, and the places of its values: a walk from length to length.

In each row group a column is a chunk of pages, one after another. A page is a header, the levels of
its values and the values: 4 bytes of length, and the bytes, of each value that is not null. So a
value's place is known only if all lengths before it in the page are. The values of a column with a
dictionary are in one page of their own, the first, and the others have indices.

A walk is a generator: it yields the place and the size of bytes that it needs, and is sent these,
or fewer at the end of the file. So files and objects are searched by the same code; `in_turn()` and
`at_once()` answer walks.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Generator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ...contract._types import IntArray
from .compact import Compact, Fields, hybrid, number_in

_T = TypeVar("_T")
Request: TypeAlias = tuple[int, int]
"""A position in a file, and a number of bytes."""
Walk: TypeAlias = Generator[Request, bytes, _T]
Run: TypeAlias = Callable[[Sequence[Walk[Any]]], list[Any]]
Places: TypeAlias = tuple[IntArray, IntArray]
"""The starts and the sizes of n values, int64[n] both: bytes. The size of a null is -1."""

_LENGTH = struct.Struct("<I")
_HEAD, _LONGEST_HEAD = 256, 1 << 20  # bytes: a header may have two values, as statistics
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3  # kinds of pages
_PLAIN, _INDICES, _RLE = 0, (2, 8), 3  # encodings
_PADDING = 8  # bytes: fastparquet ends pages with zeros
_CUT = "the file is truncated"


class Chunk(NamedTuple):
    """A column in one row group.

    Attributes:
        start: the place of its first page, bytes.
        end: the end of its last page.
        rows: the rows of the group.
        codec: the number of its compression in the footer.
        encodings: those of its pages.
        table: the place and the bytes of its offset index, which has the places of its pages:
            https://parquet.apache.org/docs/file-format/pageindex/. None: it has none.
    """

    start: int
    end: int
    rows: int
    codec: int
    encodings: frozenset[int]
    table: Request | None = None


class Leaf(NamedTuple):
    """A column of bytes, as the footer describes it.

    Attributes:
        path: its name in the file, with dots.
        level: the definition level of a value; lower ones are nulls. 0: there are no levels.
        fixed: the bytes of each value; 0: each has a length of its own.
        chunks: those with rows, in the order of the rows.
    """

    path: str
    level: int
    fixed: int
    chunks: Sequence[Chunk]


class _Page(NamedTuple):
    kind: int
    values: int  # with nulls
    encoding: int
    coding: int  # of the levels
    levels: tuple[int, int] | None  # their place and bytes in a page v2; a page v1 begins with both
    start: int  # of the body
    end: int
    head: bytes  # what has been read
    base: int  # its place

    @property
    def rows(self) -> int:
        return self.values if self.kind in (_DATA, _DATA_V2) else 0


def find(leaf: Leaf, run: Run, block: int, *, indexed: bool = False) -> Places:
    """Find the values of a column, row after row.

    Args:
        leaf: the column.
        run: answers walks.
        block: bytes to read at a time where values are much smaller.
        indexed: use the offset indexes, if there are any: then all headers of pages are read at
            once, not one after another.

    Raises:
        ValueError: the pages contradict the footer or themselves, or are encoded otherwise; has the
            position.
    """
    chunks: list[list[_Page]] = []
    if indexed and all(it.table for it in leaf.chunks):
        each = [*zip(leaf.chunks, run([_starts(it) for it in leaf.chunks]), strict=True)]
        heads = iter(run([_page(at, chunk.end) for chunk, starts in each for at in starts]))
        chunks = [_checked(chunk, [*islice(heads, len(starts))]) for chunk, starts in each]
    chunks = chunks or run([_pages(chunk) for chunk in leaf.chunks])
    apart = {
        n: page for n, pages in enumerate(chunks) for page in pages if page.kind == _DICTIONARY
    }
    known: list[Places] = run([_dictionary(page, leaf.fixed, block) for page in apart.values()])
    dictionaries = dict(zip(apart, known, strict=True))
    walks = [
        _values(page, leaf, dictionaries.get(number), block)
        for number, pages in enumerate(chunks)
        for page in pages
        if page.kind != _DICTIONARY
    ]
    none = np.empty(0, np.int64)
    starts, sizes = zip((none, none), *run(walks), strict=True)
    return np.concatenate(starts), np.concatenate(sizes)


def in_turn(
    walks: Sequence[Walk[_T]],
    read: Callable[[int, int], bytes],
    progress: Callable[[int], object] = lambda position: None,
) -> list[_T]:
    """Run walks one after another; `read` returns bytes at a position."""
    found = []
    for walk in walks:
        try:
            at, size = next(walk)
            progress(at)
            while True:
                at, size = walk.send(read(at, size))
        except StopIteration as done:
            found.append(done.value)
    return found


def at_once(
    walks: Sequence[Walk[_T]], read: Callable[[Sequence[Request]], Sequence[bytes]]
) -> list[_T]:
    """Run walks side by side; `read` is given what all of them need next."""
    found, asked = dict[int, _T](), dict[int, Request]()

    def go_on(number: int, data: bytes | None) -> None:
        try:
            asked[number] = walks[number].send(data)  # type: ignore[arg-type]  # None begins it
        except StopIteration as done:
            found[number] = done.value

    for number in range(len(walks)):
        go_on(number, None)
    while asked:
        wanted, asked = asked, {}
        for number, data in zip(wanted, read([*wanted.values()]), strict=True):
            go_on(number, data)
    return [found[number] for number in range(len(walks))]


def _starts(chunk: Chunk) -> Walk[list[int]]:
    """Read the places of pages in the offset index, which lacks that of a dictionary."""
    at, size = chunk.table or (0, 0)
    data = yield at, size
    try:
        starts = [number_in(location, 1) for location in Compact(data).fields()[1]]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"the offset index at {at:,} is damaged ({error})") from None
    found = sorted({chunk.start, *starts})
    if found[0] < chunk.start or found[-1] >= chunk.end:
        raise ValueError(f"the offset index at {at:,} has pages of another column")
    return found


def _pages(chunk: Chunk) -> Walk[list[_Page]]:
    pages, at, left = list[_Page](), chunk.start, chunk.rows
    while left > 0:
        if at >= chunk.end:
            raise ValueError(f"{left:,} values are missing in the pages that end at {at:,}")
        pages.append((yield from _page(at, chunk.end)))
        at = pages[-1].end
        left -= pages[-1].rows
    return _checked(chunk, pages)


def _checked(chunk: Chunk, pages: Sequence[_Page]) -> list[_Page]:
    """Return the pages of values and of a dictionary, and not those of an index."""
    ends = [chunk.start, *(it.end for it in pages)]
    rows = sum(it.rows for it in pages)
    if [*(it.base for it in pages), chunk.end] != ends or rows != chunk.rows:
        what = "have other values than the footer says"
        raise ValueError(f"the pages from {chunk.start:,} to {chunk.end:,} {what}")
    return [it for it in pages if it.kind in (_DATA, _DATA_V2, _DICTIONARY)]


def _page(at: int, end: int) -> Walk[_Page]:
    """Read the header of the page at `at`, in a chunk that ends at `end`."""
    size = _HEAD
    while True:
        data = yield at, min(size, end - at)
        header = Compact(data)
        try:
            return _described(header.fields(), header, at, end)
        except IndexError:
            if size >= min(_LONGEST_HEAD, end - at):
                raise ValueError(f"there is no page header at {at:,}") from None
        except (RecursionError, ValueError) as error:
            raise ValueError(f"the page header at {at:,} is wrong: {error}") from None
        size *= 8


def _described(fields: Fields, header: Compact, at: int, end: int) -> _Page:
    kind, size, start = number_in(fields, 1), number_in(fields, 3), at + header.at
    if size != number_in(fields, 2) or start + size > end:
        raise ValueError(f"its {size:,} bytes do not fit the column, or are compressed")
    count, encoding, coding, levels = 0, _PLAIN, _RLE, None
    if kind in (_DATA, _DATA_V2, _DICTIONARY):
        about = fields.get({_DATA: 5, _DICTIONARY: 7}.get(kind, 8))
        if not isinstance(about, dict):
            raise ValueError("the number of values is missing")
        count, encoding = number_in(about, 1), number_in(about, 4 if kind == _DATA_V2 else 2)
        coding = number_in(about, 3) if kind == _DATA else _RLE
        if kind == _DATA_V2:
            levels = start + number_in(about, 6), number_in(about, 5)
    end = start + size
    return _Page(kind, count, encoding, coding, levels, start, end, header.data, at)


def _bytes(page: _Page, at: int, size: int) -> Walk[bytes]:
    """Read bytes of a page, unless they came with its header."""
    if size < 0 or at + size > page.end:  # less than nothing is left after wrong levels
        raise ValueError(f"the page at {page.base:,} has levels or values beyond its end")
    known = page.head[at - page.base :][:size]
    data = known if len(known) == size else (yield at, size)
    if len(data) < size:
        raise ValueError(_CUT)
    return data


def _dictionary(page: _Page, fixed: int, block: int) -> Walk[Places]:
    if page.encoding not in (_PLAIN, _INDICES[0]):  # 2 is PLAIN here, in older files
        raise ValueError(f"the dictionary at {page.base:,} has the encoding {page.encoding}")
    return (yield from _plain(page, page.start, page.values, fixed, block))


def _values(page: _Page, leaf: Leaf, dictionary: Places | None, block: int) -> Walk[Places]:
    """Find the values of a page, with nulls."""
    try:
        return (yield from _present(page, leaf, dictionary, block))
    except IndexError:
        raise ValueError(f"levels or indices of the page at {page.base:,} end early") from None


def _present(page: _Page, leaf: Leaf, dictionary: Places | None, block: int) -> Walk[Places]:
    at, level, present = page.start, leaf.level, None
    if page.levels is not None:
        place, size = page.levels
        at = place + size
    elif level:
        if page.coding != _RLE:
            raise ValueError(f"the levels of the page at {page.base:,} are coded as {page.coding}")
        (size,) = _LENGTH.unpack((yield from _bytes(page, at, 4)))
        place, at = at + 4, at + 4 + size
    if level and size:
        levels = hybrid((yield from _bytes(page, place, size)), page.values, level.bit_length())
        present = levels == level
    count = page.values if present is None else int(np.count_nonzero(present))
    if page.encoding == _PLAIN:
        starts, sizes = yield from _plain(page, at, count, leaf.fixed, block)
    elif page.encoding in _INDICES and dictionary is not None:
        data = (yield from _bytes(page, at, page.end - at)) or bytes(1)
        indices = hybrid(data[1:], count, data[0]) if data[0] else np.zeros(count, np.int64)
        if indices.max(initial=-1) >= len(dictionary[0]):
            raise ValueError(f"the page at {page.base:,} has an index beyond its dictionary")
        starts, sizes = dictionary[0][indices], dictionary[1][indices]
    else:
        raise ValueError(f"the page at {page.base:,} has the encoding {page.encoding}")
    if present is None:
        return starts, sizes
    places = np.full((2, page.values), -1)
    places[:, present] = starts, sizes
    return places[0], places[1]


def _plain(page: _Page, at: int, count: int, fixed: int, block: int) -> Walk[Places]:
    """Find `count` values that are not null, from `at` to the end of the page."""
    first, end = at, page.end
    if count * (fixed or _LENGTH.size) > end - at:
        raise ValueError(f"the page at {page.base:,} has fewer bytes than {count:,} values")
    if fixed:
        ends = at + fixed * np.arange(1, count + 1)
        at += count * fixed
    else:
        places, data, base = array("q"), page.head, page.base
        # Bytes read ahead of a length would be part of a large value, and not needed.
        ahead = 4 if end - at > count * (block // 16) else block
        for _ in range(count):
            if at + 4 > base + len(data):
                if at + 4 > end:
                    break
                data, base = (yield at, min(ahead, end - at)), at
                if len(data) < 4:
                    raise ValueError(_CUT)
            (size,) = _LENGTH.unpack_from(data, at - base)
            at += 4 + size
            if at > end:
                break
            places.append(at)
        ends = np.array(places, np.int64)
    if len(ends) < count or not 0 <= end - at <= _PADDING:
        raise ValueError(f"the lengths in the page at {page.base:,} do not add up to its size")
    if at != end and any((yield from _bytes(page, at, end - at))):
        raise ValueError(f"the page at {page.base:,} has more bytes than its values")
    sizes = np.diff(ends, prepend=first) - (0 if fixed else 4)
    return ends - sizes, sizes
