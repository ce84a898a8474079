"""WebDataset: tars in which files that follow each other and have one name are a sample."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._types import IntArray
from ..catalog import Catalog
from ..contents import Contents, Format, Output
from ..errors import ContainerChangedError, named
from ..ranges import Ranges
from . import tars, wds_index
from .components import Block, Selection, grouped, texts

_SAMPLES = 16384  # of a tar that are handled at a time
_SMALL = 4096  # bytes; to copy so few costs less than a tensor of DALI's


class WebDataset(Format):
    """The components of a sample, as arrays of the dtypes of the outputs."""

    operator = "webdataset"
    schema = "Webdataset"
    labels = False

    def __init__(self, dtypes: Sequence[np.dtype[Any]]) -> None:
        self.outputs = [Output(dtype) for dtype in dtypes]

    def decode(
        self, catalog: Catalog, delivered: IntArray, contents: Contents
    ) -> Sequence[Contents]:
        """Small components of one size, such as labels, become one array; see `Format`."""
        dtypes = [output.dtype for output in self.outputs]
        return [_typed(contents[i :: len(dtypes)], dtype) for i, dtype in enumerate(dtypes)]


def _typed(contents: Contents, dtype: Any) -> Contents:
    if isinstance(contents, np.ndarray):
        rows: NDArray[Any] = np.ascontiguousarray(contents).view(dtype)
        return rows
    items: Sequence[Any] = contents
    size = len(items[0])
    if size <= _SMALL and all(len(item) == size for item in items):
        return np.frombuffer(b"".join(items), dtype).reshape(len(items), size // dtype.itemsize)
    return items if dtype == np.uint8 else [np.frombuffer(item, dtype) for item in items]


def find(
    paths: Sequence[bytes],
    indexes: Sequence[bytes] | None,
    selection: Selection,
    *,
    by_container: bool,
    may_be_missing: bool,
) -> Catalog:
    """The catalog of tars: for each sample as many pieces as outputs, empty where one is missing.

    With indexes, the header in the tar before the first and the last of its pieces is read.

    Args:
        paths: of the tars.
        indexes: the path of the index of each; None to read the tars instead, header by header.
        selection: the outputs.
        by_container: whether the order of the samples goes by containers.
        may_be_missing: whether a tar that has an index need not exist here.

    Raises:
        ValueError: a tar or an index is damaged; a component is missing, and that is an error; or
            there are no samples, or none that has any of the extensions.
        ContainerChangedError: an index contradicts its tar.
        OSError: a tar or an index cannot be read.
    """
    places: list[tuple[IntArray, IntArray]] = []
    for container, path in enumerate(paths):
        if indexes is None:
            rows, _ = _choose(_scan(path), selection, partial(_sample_error, path))
        else:
            index = indexes[container]
            error = partial(wds_index.line_error, index)
            rows, samples = _choose(wds_index.blocks(index), selection, error)
            _check(path, index, rows, samples, may_be_missing)
        places.append((rows[:, :, 0].ravel(), rows[:, :, 1].ravel()))
    outputs = len(selection.ext)
    counts = np.array([len(starts) // outputs for starts, _ in places])
    _refuse_nothing(selection, int(counts.sum()))
    names = Catalog.from_names(paths, range(len(paths)))
    return Catalog(
        b"",
        names.names,
        names.offsets,
        np.empty(0, np.int32),
        Ranges.of_files(places),
        outputs,
        counts if by_container else None,
    )


def _scan(path: bytes) -> Iterator[Block]:
    samples = tars.samples(tars.members(path))
    while block := [*islice(samples, _SAMPLES)]:
        yield grouped(
            (tuple(each.extensions), [n for member in each.members for n in member[1:]])
            for each in block
        )


def _sample_error(path: bytes, sample: int, what: str) -> ValueError:
    return ValueError(f"{os.fsdecode(path)!r}, sample {sample}: {what}")


def _choose(blocks: Iterator[Block], selection: Selection, error: Any) -> tuple[IntArray, IntArray]:
    """The rows of `Selection.choose()` of all blocks of a container, and their samples in it."""
    rows, samples, done = [], [], 0
    for block in blocks:
        chosen, kept = selection.choose(block, partial(_shifted, error, done))
        rows.append(chosen)
        samples.append(kept + done)
        done += block.size
    return np.concatenate(rows), np.concatenate(samples)


def _shifted(error: Any, first: int, sample: int, what: str) -> Any:
    return error(first + sample, what)


def _check(
    path: bytes, index: bytes, rows: IntArray, samples: IntArray, may_be_missing: bool
) -> None:
    """Compare what an index says with its tar."""
    for sample in samples[(rows < 0).any(axis=(1, 2))][:1].tolist():
        raise wds_index.line_error(index, sample, "an offset or a size is negative")
    try:
        with named(path), open(os.fsdecode(path), "rb", buffering=0) as tar:
            wrong = _contradiction(tar.fileno(), index, rows, samples)
    except FileNotFoundError:
        if may_be_missing:
            return
        raise
    if wrong is not None:
        sample, (offset, size), what = wrong
        raise ContainerChangedError(
            path,
            f"{wds_index.line_error(index, sample, f'{size:,} bytes at {offset:,}, but {what}')}",
        )


def _contradiction(
    fd: int, index: bytes, rows: IntArray, samples: IntArray
) -> tuple[int, tuple[int, int], str] | None:
    """The sample, the place and what is wrong; None if nothing is."""
    end = os.fstat(fd).st_size
    starts, sizes = rows[:, :, 0], rows[:, :, 1]
    beyond = np.argwhere((starts > end) | (sizes > end - starts))[:1]
    present = np.argwhere(rows.any(axis=2))
    for row, output in [*beyond, *present[:1], *present[-1:]]:
        sample, place = int(samples[row]), (int(starts[row, output]), int(sizes[row, output]))
        if len(beyond):
            return sample, place, f"the tar has {end:,}"
        member = tars.Member(wds_index.name(index, sample, place), *place)
        if (what := tars.contradiction(fd, member)) is not None:
            return sample, place, what
    return None


def _refuse_nothing(selection: Selection, count: int) -> None:
    wanted = [*filter(None, selection.ext)]
    if count and (selection.matched or not wanted or not selection.seen):
        return
    what = "no sample has all components" if selection.matched else "no sample has any component"
    raise ValueError(f"ext: {what} of {texts(selection.ext)}; there are {texts(selection.seen)}")
