"""WebDataset: tars in which files that follow each other and have one name are a sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._types import IntArray
from ..catalog import Catalog
from ..contents import Contents, Format, Output, packed
from ..errors import ContainerChangedError, named
from ..ranges import Ranges
from . import tars, wds_index
from .components import Block, Selection, grouped, texts

_SAMPLES = 16384  # of a tar that are handled at a time


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
    return packed(contents, dtype)


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
    pieces: list[tuple[IntArray, IntArray]] = []
    for container, path in enumerate(paths):
        if indexes is None:
            rows, _ = _choose(_scan(path), selection, partial(_where, path))
        else:
            index = indexes[container]
            where = partial(wds_index.line, index)
            rows, samples = _choose(wds_index.blocks(index), selection, where)
            _check(path, index, rows, samples, may_be_missing)
        pieces.append((rows[:, :, 0].ravel(), rows[:, :, 1].ravel()))
    outputs = len(selection.ext)
    counts = np.array([len(starts) // outputs for starts, _ in pieces])
    _refuse_nothing(selection, int(counts.sum()))
    return replace(
        Catalog.from_names(paths, ()),
        ranges=Ranges.of_files(pieces),
        pieces=outputs,
        containers=counts if by_container else None,
    )


def _scan(path: bytes) -> Iterator[Block]:
    samples = tars.samples(tars.members(path))
    while block := [*islice(samples, _SAMPLES)]:
        yield grouped(
            (tuple(each.extensions), [n for member in each.members for n in member[1:]])
            for each in block
        )


def _where(path: bytes, sample: int) -> str:
    return f"{os.fsdecode(path)!r}, sample {sample}"


def _choose(
    blocks: Iterator[Block], selection: Selection, where: Callable[[int], str]
) -> tuple[IntArray, IntArray]:
    """The rows of `Selection.choose()` of all blocks of a container, and their samples in it."""
    rows, samples, done = [], [], 0
    for block in blocks:
        chosen, kept = selection.choose(block, done, where)
        rows.append(chosen)
        samples.append(kept)
        done += block.size
    return np.concatenate(rows), np.concatenate(samples)


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
        if not may_be_missing:
            raise
        return
    if wrong is not None:
        raise ContainerChangedError(path, str(wrong))


def _contradiction(fd: int, index: bytes, rows: IntArray, samples: IntArray) -> ValueError | None:
    """What is wrong in an index; None if nothing is found."""
    places, outputs = rows.reshape(-1, 2), rows.shape[1]
    starts, sizes, end = places[:, 0], places[:, 1], os.fstat(fd).st_size
    beyond = sizes > end - starts
    some = beyond if beyond.any() else (starts != 0) | (sizes != 0)
    for piece in _first_and_last(some):
        sample, (offset, size) = int(samples[piece // outputs]), places[piece].tolist()
        what: str | None = f"the tar has {end:,}"
        if not beyond[piece]:
            name = wds_index.name(index, sample, (offset, size))
            what = tars.contradiction(fd, tars.Member(name, offset, size))
        if what is not None:
            what = f"{size:,} bytes at {offset:,}, but {what}"
            return wds_index.line_error(index, sample, what)
    return None


def _first_and_last(flags: NDArray[np.bool_]) -> list[int]:
    """Where the first and the last flag is that is set."""
    if not flags.any():
        return []
    return [int(flags.argmax()), flags.size - 1 - int(flags[::-1].argmax())]


def _refuse_nothing(selection: Selection, count: int) -> None:
    wanted = [*filter(None, selection.ext)]
    if count and (selection.matched or not wanted or not selection.seen):
        return
    what = "no sample has all components" if selection.matched else "no sample has any component"
    raise ValueError(f"ext: {what} of {texts(selection.ext)}; there are {texts(selection.seen)}")
