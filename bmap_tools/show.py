"""`python -m bmap_tools show`: what a map holds, in words and as a picture."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import numpy as np

from . import csr, extent_map
from .extent_map import ExtentMap, IntArray
from .report import BadInputError, put, text

_BAR = 40  # characters
_EXAMPLES = 3


def run(path: str, *, name: str | None = None, plot: str | None = None) -> int:
    """Print what a map holds of all files or of one, and draw it; answer the exit status, 0.

    Args:
        path: the map.
        name: of the one file, its path from the root; None is all.
        plot: the file for a picture; None is no picture.

    Raises:
        BadInputError: there is no such file in the map, or matplotlib is missing.
        MapFormatError, OSError: the map cannot be read, or the picture not written.
    """
    loaded = extent_map.load(path)
    lines = _summary(loaded) if name is None else _file(loaded, path, os.fsencode(name))
    for line in lines:
        put(line)
    if plot is not None:
        from . import plot as picture

        picture.draw(loaded, plot)
    return 0


def _summary(loaded: ExtentMap) -> Iterator[str]:
    yield from _geometry(loaded)
    yield from _amounts(loaded)
    yield from _histogram(loaded)
    if loaded.unmapped:
        yield f"not mapped, to be read as files: {len(loaded.unmapped):,}"
        for why, files in Counter(loaded.unmapped.values()).most_common():
            yield f"  {files:,}: {why}"
            examples = (file for file, reason in loaded.unmapped.items() if reason == why)
            for file, _ in zip(examples, range(_EXAMPLES), strict=False):
                yield f"    {text(loaded.name(file))}"


def _geometry(loaded: ExtentMap) -> Iterator[str]:
    device, file_system = loaded.device, loaded.file_system
    yield f"root         {text(loaded.root)}"
    yield f"created      {loaded.created}"
    yield (
        f"file system  {file_system.type}, blocks of {file_system.block_size} bytes, "
        f"UUID {file_system.uuid}"
    )
    yield (
        f"device       {device.path}, {device.size:,} bytes, LBAs of {device.logical_block_size} "
        "bytes"
    )
    if device.disk != device.path:
        yield f"disk         {device.disk}, {device.disk_size:,} bytes; starts at {device.start:,}"
    for what in ("serial", "wwid", "backing_file"):
        if (value := getattr(device, what)) is not None:
            yield f"{what.replace('_file', ''):13}{value}"


def _amounts(loaded: ExtentMap) -> Iterator[str]:
    extents, counts = _within(loaded)
    contiguous, some = counts == 1, np.flatnonzero(counts)
    _, physical, length = extents.T
    written, total = int(length[physical >= 0].sum()), int(length.sum())
    yield f"classes      {len(loaded.directories):,}"
    yield f"files        {len(loaded):,}, {int(loaded.sizes.sum()):,} bytes"
    yield f"extents      {counts.sum():,}, {written:,} bytes written"
    yield f"unwritten    {total - written:,} bytes, which read as zeros"
    yield f"holes        {_ends(loaded).sum() - total:,} bytes, which read as zeros"
    yield f"reserved     {loaded.extents[:, 2].sum() - total:,} bytes beyond the ends of files"
    if some.size:
        yield (
            f"contiguous   {contiguous.sum() / some.size:.1%} of the files that have extents, "
            f"{loaded.sizes[contiguous].sum() / max(1, loaded.sizes[some].sum()):.1%} of their "
            "bytes"
        )


def _ends(loaded: ExtentMap) -> IntArray:
    """The sizes of the files in whole blocks, 0 for those that are not mapped: int64[n]."""
    block = loaded.file_system.block_size
    ends: IntArray = -(-loaded.sizes // block) * block
    ends[list(loaded.unmapped)] = 0
    return ends


def _within(loaded: ExtentMap) -> tuple[IntArray, IntArray]:
    return csr.within(loaded.extents, np.diff(loaded.extent_offsets), loaded.sizes)


def _histogram(loaded: ExtentMap) -> Iterator[str]:
    """How many files have 0, 1, 2, 3 to 4, 5 to 8 ... extents."""
    counts = np.delete(_within(loaded)[1], list(loaded.unmapped))
    if not counts.size:
        return
    yield "extents a file:"
    bins = np.where(counts > 0, np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64), -1)
    longest = np.bincount(bins + 1).max()
    for power in range(-1, int(bins.max()) + 1):
        files = int((bins == power).sum())
        last = 2**power if power >= 0 else 0
        first = last // 2 + 1 if power > 1 else last
        label = f"{last:,}" if first == last else f"{first:,} to {last:,}"
        yield f"  {label:>17}  {files:>11,}  {'#' * -(-files * _BAR // longest)}".rstrip()


def _file(loaded: ExtentMap, path: str, name: bytes) -> Iterator[str]:
    file = _find(loaded, path, name)
    yield f"path    {text(loaded.name(file))}"
    yield f"size    {int(loaded.sizes[file]):,} bytes"
    yield f"inode   {int(loaded.inodes[file])}"
    if file in loaded.unmapped:
        yield f"not mapped, to be read as a file: {loaded.unmapped[file]}"
        return
    first, last = loaded.extent_offsets[file : file + 2].tolist()
    yield f"extents {last - first:,}"
    lba_bytes, start = loaded.device.logical_block_size, loaded.device.start
    if last > first:
        yield f"{'logical':>16} {'physical':>18} {'length':>14}  LBAs of {loaded.device.disk}"
    for logical, physical, length in loaded.extents[first:last].tolist():
        if physical < 0:
            yield f"{logical:>16} {'unwritten':>18} {length:>14}"
            continue
        lba = (start + physical) // lba_bytes
        lbas = f"{lba} to {lba + length // lba_bytes - 1}"
        yield f"{logical:>16} {physical:>18} {length:>14}  {lbas}"


def _find(loaded: ExtentMap, path: str, name: bytes) -> int:
    name = name.removeprefix(loaded.root.rstrip(b"/") + b"/")
    for file in np.flatnonzero(np.diff(loaded.name_offsets) == len(name)).tolist():
        if loaded.name(file) == name:
            return int(file)
    raise BadInputError(f"{path} has no file {text(name)}; give its path from {text(loaded.root)}")
