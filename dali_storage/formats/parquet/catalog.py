"""The catalog of the rows of Parquet files, from indexes or from a walk over pages."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog, open_regular
from ...contract.errors import os_error
from ..files import LOCAL, Files, assembled, noting_states
from .footer import Footer, Read, leaf_of, number_of, numbers_of_bytes, read_footer
from .index import Index, places_in, read_index, state, written
from .labels import Labels, numbered, read_labels
from .pages import Leaf, Places, Request, Walk, at_once, in_turn
from .pages import find as find_values

_T = TypeVar("_T")

_STEP = 1.0  # seconds of a wait that a Ctrl-C must end
_FILES, _OBJECTS = 16, 4  # at once: each waits for the storage most of the time
_BLOCK, _REMOTE_BLOCK = 1 << 16, 1 << 18  # bytes, read at a time where values are small


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table(Catalog):
    """Rows of Parquet files.

    Attributes:
        classes: the names of the classes, by their labels; None: labels are numbers only, or there
            are none.
    """

    classes: tuple[str, ...] | None = None


class _Rows(NamedTuple):
    """What was found in a file."""

    starts: IntArray  # int64[rows, columns]
    sizes: IntArray
    labels: Labels | None


class _Source(NamedTuple):
    """Access to a file or an object."""

    read: Read
    find: Callable[[Leaf], Places]


def find(
    paths: Sequence[bytes],
    columns: Sequence[str],
    label: str | None = None,
    classes: Sequence[str] | None = None,
    indexes: Sequence[bytes] | None = None,
    missing: str = "error",
    files: Files = LOCAL,
) -> Table:
    """Find the rows of files, in their order; a piece for each column.

    The arguments are those of `readers.parquet`; `files` reads files and indexes.

    Raises:
        ValueError: a file is not Parquet, is damaged, or stores a column otherwise; it lacks a
            column or a value; an index is damaged; there are no rows. The message has the path.
        ContainerChangedError: an index is of another file, or of another state of its file.
        OSError: a file or an index cannot be read.
    """
    found = noting_states(files.catalog(paths))  # before reading: later changes are noticed
    known: list[Index | None] = [None] * len(paths)
    if indexes is not None:
        with files.opened(indexes) as opened:
            known = [read_index(index, next(opened)) for index in indexes]

    def rows_of(file: int) -> _Rows:
        path = paths[file]
        with _opened(files, found, file) as (source, nbytes):
            footer = read_footer(source.read, nbytes)
            leaves = [leaf_of(footer, number_of(footer, it)) for it in columns]
            if (index := known[file]) is None or indexes is None:
                places = [source.find(leaf) for leaf in leaves]
            else:
                now = state(footer, found, file)
                places = places_in(index, indexes[file], path, now, [it.path for it in leaves])
            labels = None if label is None else read_labels(source.read, footer, label)
        starts, sizes = (np.stack(its, axis=1) for its in zip(*places, strict=True))
        return _chosen(_Rows(starts, sizes, labels), columns, missing)

    pool = ThreadPoolExecutor(_FILES if found.sizes is None else _OBJECTS)
    try:
        asked = [pool.submit(_about, paths, rows_of, file) for file in range(len(paths))]
        rows = list[_Rows]()
        for one in asked:
            while not one.done():  # in steps: see runtime/waiting.py
                wait([one], _STEP)
            rows.append(one.result())
    finally:  # an error, or a Ctrl-C, does not wait for a store
        pool.shutdown(wait=found.sizes is None, cancel_futures=True)
    places = [(it.starts.ravel(), it.sizes.ravel()) for it in rows]
    lacks = "has no rows" + (" with values" if missing == "skip" else "")
    found = assembled(found, places, lacks, len(columns))
    labels, names = [np.empty(0, np.int32)], None
    if label is not None:
        labels, names = numbered(paths, [it.labels for it in rows if it.labels], classes)
    its = {it.name: getattr(found, it.name) for it in fields(found) if it.init}
    return Table(**its | {"labels": np.concatenate(labels)}, classes=names)


def index(path: bytes, progress: Callable[[int], object], files: Files = LOCAL) -> list[bytes]:
    """Return the parts of the index of a file or object; raises as `find()`."""
    found = noting_states(files.catalog([path]))

    def index_of(file: int) -> list[bytes]:
        with _opened(files, found, file, progress) as (source, nbytes):
            footer = read_footer(source.read, nbytes)
            leaves = stored(footer)
            places = {it.path: source.find(it) for it in leaves}
        return written(state(footer, found, file), places)

    return _about([path], index_of, 0)


def stored(footer: Footer) -> list[Leaf]:
    """Return the columns of bytes that are stored plainly, at least one."""
    found, refused = list[Leaf](), list[ValueError]()
    for number in numbers_of_bytes(footer):
        try:
            found.append(leaf_of(footer, number))
        except ValueError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def footer_of(path: bytes) -> Footer:
    """Return the footer of a local file; raises as `find()`."""
    with _opened(LOCAL, Catalog.from_names([path], ()), 0) as (source, nbytes):
        return _about([path], lambda file: read_footer(source.read, nbytes), 0)


def _about(paths: Sequence[bytes], function: Callable[[int], _T], file: int) -> _T:
    """Call a function of a file; the errors about its content get its path."""
    try:
        return function(file)
    except ValueError as error:
        raise ValueError(f"{os.fsdecode(paths[file])!r}: {error}") from None
    except OSError as error:
        if error.filename is not None:
            raise
        raise os_error(error.errno or errno.EIO, paths[file]) from None


@contextmanager
def _opened(
    files: Files, catalog: Catalog, file: int, progress: Callable[[int], object] = int
) -> Iterator[tuple[_Source, int]]:
    """Yield access to a file or an object of a catalog, and its size."""
    if catalog.sizes is not None:

        def ask(places: Sequence[Request]) -> list[bytes]:
            return [*files.parts(catalog, [(file, *place) for place in places])]

        def run(walks: Sequence[Walk[_T]]) -> list[_T]:
            return at_once(walks, ask)

        find = partial(find_values, run=run, block=_REMOTE_BLOCK, indexed=True)
        yield _Source(ask, find), int(catalog.sizes[file])
        return
    path = catalog.file_path(file)
    with open_regular(path) as opened:
        fd = opened.fileno()
        # Bytes read ahead of a length would mostly be values.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

        def read(at: int, size: int) -> bytes:
            return os.pread(fd, size, at)

        def walk(walks: Sequence[Walk[_T]]) -> list[_T]:
            return in_turn(walks, read, progress)

        find = partial(find_values, run=walk, block=_BLOCK)
        yield _Source(lambda places: [read(*place) for place in places], find), os.fstat(fd).st_size


def _chosen(rows: _Rows, columns: Sequence[str], missing: str) -> _Rows:
    """Refuse rows without a value, leave them out, or make their values empty."""
    lacking = rows.sizes < 0
    some = lacking.any(axis=1)
    if not some.any():
        return rows
    if missing == "error":
        row, column = np.argwhere(lacking)[0].tolist()
        what = f"row {row} has no value in {columns[column]!r} ({some.sum():,} rows lack one)"
        raise ValueError(f"{what}; give missing='skip' or missing='empty'")
    if missing == "empty":
        starts, sizes = (np.where(lacking, 0, it) for it in (rows.starts, rows.sizes))
        return _Rows(starts, sizes, rows.labels)
    labels = rows.labels and rows.labels._replace(numbers=rows.labels.numbers[~some])
    return _Rows(rows.starts[~some], rows.sizes[~some], labels)
