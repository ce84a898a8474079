"""WebDataset: tars whose consecutive files with the same name are a sample."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from typing import NoReturn, TypeAlias

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ..files import LOCAL, MOST, Files, assembled, noting_states, sizes
from . import index as tar_index
from .archive import Member, members
from .components import Block, Selection, grouped, samples

_SAMPLES = 16384  # samples of a tar handled at a time
_TARS = 16  # read at once

_Chosen: TypeAlias = tuple[IntArray, IntArray, list[tuple[int, Member]]]
"""The rows of `Selection.choose()` of all blocks of a container, their samples, and the probes."""


def find(
    paths: Sequence[bytes],
    indexes: Sequence[bytes] | None,
    selection: Selection,
    may_be_missing: bool,
    files: Files = LOCAL,
) -> Catalog:
    """Make the catalog of tars: a piece for each output of each sample, empty if missing.

    For every 4 MiB of an index, the headers of its first and last files, and of the files with the
    longest name, are compared with the tar. If the tar is an object, only one file of each of
    these samples is compared, because each is a request.

    Args:
        paths: the paths of the tars.
        indexes: the path of the index of each; None to read the tars instead, header by header.
        selection: the outputs.
        may_be_missing: whether a tar with an index need not exist here.
        files: reads tars and indexes.

    Raises:
        ValueError: a tar or an index is damaged; a component is missing, with missing="error"; or
            there are no samples, or none with any of the extensions.
        ContainerChangedError: an index contradicts its tar.
        OSError: a tar or an index cannot be read.
    """
    tars = noting_states(files.catalog(paths))
    if indexes is None:
        with ThreadPoolExecutor(_TARS) as pool:  # each waits for the storage at every header
            rows = list(pool.map(partial(_read, selection), paths))
    else:
        with files.opened(indexes) as opened:
            chosen = [
                _choose(tar_index.blocks(index, file), selection, partial(tar_index.line, index))
                for index, file in zip(indexes, opened, strict=True)
            ]
        _compare(files, tars, indexes, chosen, may_be_missing)
        rows = [each for each, _, _ in chosen]
    pieces = [(each[:, :, 0].ravel(), each[:, :, 1].ravel()) for each in rows]
    selection.refuse_nothing(sum(map(len, rows)))
    found = assembled(tars, pieces, pieces=len(selection.ext))
    each = zip(paths, indexes or repeat(None), strict=False)
    return replace(found, source_info=[partial(_source_info, *it, files) for it in each])


def _source_info(path: bytes, index: bytes | None, files: Files) -> dict[int, bytes]:
    if index is None:
        names = {member.offset: member.name for member in members(path)}
    else:
        with files.opened([index]) as opened:
            names = tar_index.names(next(opened))
    return {offset: b"%b:%d:%b" % (path, offset, name) for offset, name in names.items()}


def _read(selection: Selection, path: bytes) -> IntArray:
    return _choose(_scan(path), selection, partial(_where, path))[0]


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
    files: Files,
    tars: Catalog,
    indexes: Sequence[bytes],
    chosen: Sequence[_Chosen],
    may_be_missing: bool,
) -> None:
    """Compare indexes with their tars, if the tars exist.

    In an object, only one file of a sample is compared: the file with the longest name, which may
    be in the wrong place (`index.contradiction()`).
    """

    def refuse(container: int, sample: int, place: Sequence[int], what: str) -> NoReturn:
        what = f"{place[1]:,} bytes at {place[0]:,}, but {what}"
        what = str(tar_index.line_error(indexes[container], sample, what))
        raise ContainerChangedError(tars.file_path(container), what)

    probes: list[tuple[int, int, Member]] = []  # container, sample, file
    ends = sizes(tars, [FileNotFoundError] if may_be_missing else []).tolist()
    for container, (end, (rows, kept, some)) in enumerate(zip(ends, chosen, strict=True)):
        if end == MOST:
            continue
        for row, output in np.argwhere(rows[:, :, 1] > end - rows[:, :, 0])[:1].tolist():
            refuse(container, int(kept[row]), rows[row, output].tolist(), f"the tar has {end:,}")
        if tars.sizes is not None:
            some = [*dict(sorted(some, key=lambda probe: len(probe[1].name))).items()]
        probes += [(container, *probe) for probe in some]
    places = [(container, *tar_index.before(file)) for container, _, file in probes]
    for (container, sample, file), head in zip(probes, files.parts(tars, places), strict=True):
        if (what := tar_index.contradiction(head, file)) is not None:
            refuse(container, sample, file[1:], what)
