"""WebDataset: tars in which files that follow each other and have one name are a sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ...contract.format import Contents, Format, Output, packed
from ...contract.ranges import Ranges
from ..files import LOCAL, Files, ReadAt
from . import index as tar_index
from .archive import Member, members
from .components import Block, Selection, grouped, samples

_SAMPLES = 16384  # of a tar that are handled at a time

_Chosen: TypeAlias = tuple[IntArray, IntArray, list[tuple[int, Member]]]
"""The rows of `Selection.choose()` of all blocks of a container, their samples, and the probes."""


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
    files: Files = LOCAL,
) -> Catalog:
    """The catalog of tars: for each sample as many pieces as outputs, empty where one is missing.

    An index is compared with the headers of the first and the last files that it names, and of
    those with the longest name, for every 4 MiB of it; if the tar is an object, of one of each
    sample, because each is a request.

    Args:
        paths: of the tars.
        indexes: the path of the index of each; None to read the tars instead, header by header.
        selection: the outputs.
        by_container: whether the order of the samples goes by containers.
        may_be_missing: whether a tar that has an index need not exist here.
        files: reads tars and indexes.

    Raises:
        ValueError: a tar or an index is damaged; a component is missing, and that is an error; or
            there are no samples, or none that has any of the extensions.
        ContainerChangedError: an index contradicts its tar.
        OSError: a tar or an index cannot be read.
    """
    tars = files.catalog(paths)

    def places(container: int) -> tuple[IntArray, IntArray]:
        if indexes is None:
            path = paths[container]
            rows, _, _ = _choose(_scan(path), selection, partial(_where, path))
        else:
            index = indexes[container]
            lines = tar_index.blocks(index, files)
            chosen = _choose(lines, selection, partial(tar_index.line, index))
            _compare(files, tars, container, index, chosen, may_be_missing)
            rows = chosen[0]
        return rows[:, :, 0].ravel(), rows[:, :, 1].ravel()

    pieces = files.each(places, range(len(paths)))
    outputs = len(selection.ext)
    counts = np.array([len(starts) // outputs for starts, _ in pieces])
    selection.refuse_nothing(int(counts.sum()))
    return replace(
        tars,
        ranges=Ranges.of_files(pieces),
        pieces=outputs,
        containers=counts if by_container else None,
    )


def _scan(path: bytes) -> Iterator[Block]:
    found = samples(members(path))
    while block := [*islice(found, _SAMPLES)]:
        yield grouped(
            (tuple(extension for extension, _ in each), [n for _, file in each for n in file[1:]])
            for each in block
        )


def _where(path: bytes, sample: int) -> str:
    return f"{os.fsdecode(path)!r}, sample {sample}"


def _choose(blocks: Iterator[Block], selection: Selection, where: Callable[[int], str]) -> _Chosen:
    chosen, done = [], 0
    probes: list[tuple[int, Member]] = []
    for block in blocks:
        chosen.append(selection.choose(block, done, where))
        probes.extend(block.probes)
        done += block.size
    rows, kept = zip(*chosen, strict=True)
    return np.concatenate(rows), np.concatenate(kept), probes


def _compare(
    files: Files, tars: Catalog, container: int, index: bytes, chosen: _Chosen, may_be_missing: bool
) -> None:
    """Compare what an index says with its tar, if that is there."""
    try:
        with files.reading(tars, container) as (read, end):
            wrong = _contradiction(read, end, chosen, each=tars.sizes is None)
    except FileNotFoundError:
        if not may_be_missing:
            raise
        return
    for sample, (offset, size), what in wrong:
        what = f"{size:,} bytes at {offset:,}, but {what}"
        what = str(tar_index.line_error(index, sample, what))
        raise ContainerChangedError(tars.file_path(container), what)


def _contradiction(
    read: ReadAt, end: int, chosen: _Chosen, each: bool
) -> list[tuple[int, Sequence[int], str]]:
    """The first wrong sample, its place, and what is there instead; empty if none is found.

    `each`: whether all files of a sample are compared, or only the one with the longest name, which
    may be in the wrong place (`wds_index.contradiction()`).
    """
    rows, kept, probes = chosen
    for row, output in np.argwhere(rows[:, :, 1] > end - rows[:, :, 0])[:1].tolist():
        return [(int(kept[row]), rows[row, output].tolist(), f"the tar has {end:,}")]
    one = dict(sorted(probes, key=lambda probe: len(probe[1].name)))  # the last one, if equal
    for sample, file in probes if each else one.items():
        if (what := tar_index.contradiction(read, file)) is not None:
            return [(sample, file[1:], what)]
    return []
