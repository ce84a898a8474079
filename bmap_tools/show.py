"""`python -m bmap_tools show`: describe a map, or one of its files."""

import os
from collections.abc import Iterator

import numpy as np

from .console import BadInputError, print_result, printable
from .extent_map import ExtentMap, IntArray, without_reserved
from .format import load

_BAR = 40  # characters
_EXAMPLES = 3


def run(path: str, *, name: str | None = None) -> int:
    """Print a summary of a map, or the extents of the file `name`.

    Returns the exit status, 0.

    Raises:
        BadInputError: the map has no such file.
        MapFormatError, OSError: the map cannot be read.
    """
    extent_map = load(path)
    lines = _summary(extent_map) if name is None else _file(extent_map, path, os.fsencode(name))
    for line in lines:
        print_result(line)
    return 0


def _summary(extent_map: ExtentMap) -> Iterator[str]:
    yield from _geometry(extent_map)
    extents, counts = without_reserved(
        extent_map.extents, np.diff(extent_map.extent_offsets), extent_map.sizes
    )
    yield from _amounts(extent_map, extents, counts)
    yield from _histogram(np.delete(counts, list(extent_map.unmapped)))
    reasons: dict[str, list[int]] = {}
    for file, why in extent_map.unmapped.items():
        reasons.setdefault(why, []).append(file)
    if reasons:
        yield f"not mapped, to be read as files: {len(extent_map.unmapped):,}"
    for why, files in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"  {len(files):,}: {why}"
        for file in files[:_EXAMPLES]:
            yield f"    {printable(extent_map.name(file))}"


def _geometry(extent_map: ExtentMap) -> Iterator[str]:
    device, file_system = extent_map.device, extent_map.file_system
    yield f"root         {printable(extent_map.root)}"
    yield f"created      {extent_map.created}"
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


def _amounts(extent_map: ExtentMap, extents: IntArray, counts: IntArray) -> Iterator[str]:
    contiguous, some, sizes = counts == 1, np.flatnonzero(counts), extent_map.sizes
    _, physical, length = extents.T
    written, total = int(length[physical >= 0].sum()), int(length.sum())
    block = extent_map.file_system.block_size
    ends = -(-sizes // block) * block
    ends[list(extent_map.unmapped)] = 0
    yield f"classes      {len(extent_map.directories):,}"
    yield f"files        {len(extent_map):,}, {int(sizes.sum()):,} bytes"
    yield f"extents      {counts.sum():,}, {written:,} bytes written"
    yield f"unwritten    {total - written:,} bytes, which read as zeros"
    yield f"holes        {ends.sum() - total:,} bytes, which read as zeros"
    yield f"reserved     {extent_map.extents[:, 2].sum() - total:,} bytes beyond the ends of files"
    if some.size:
        yield (
            f"contiguous   {contiguous.sum() / some.size:.1%} of the files that have extents, "
            f"{sizes[contiguous].sum() / max(1, sizes[some].sum()):.1%} of their bytes"
        )


def _histogram(counts: IntArray) -> Iterator[str]:
    """The numbers of files with 0, 1, 2, 3 to 4, 5 to 8 ... extents."""
    if not counts.size:
        return
    yield "extents per file:"
    bins = np.where(counts > 0, np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64), -1)
    longest = np.bincount(bins + 1).max()
    for power in range(-1, int(bins.max()) + 1):
        files = int((bins == power).sum())
        last = 2**power if power >= 0 else 0
        first = last // 2 + 1 if power > 1 else last
        label = f"{last:,}" if first == last else f"{first:,} to {last:,}"
        yield f"  {label:>17}  {files:>11,}  {'#' * -(-files * _BAR // longest)}".rstrip()


def _file(extent_map: ExtentMap, path: str, name: bytes) -> Iterator[str]:
    file = _find(extent_map, path, name)
    yield f"path    {printable(extent_map.name(file))}"
    yield f"size    {int(extent_map.sizes[file]):,} bytes"
    yield f"inode   {int(extent_map.inodes[file])}"
    if file in extent_map.unmapped:
        yield f"not mapped, to be read as a file: {extent_map.unmapped[file]}"
        return
    first, last = extent_map.extent_offsets[file : file + 2].tolist()
    yield f"extents {last - first:,}"
    lba_bytes, start = extent_map.device.logical_block_size, extent_map.device.start
    if last > first:
        yield f"{'logical':>16} {'physical':>18} {'length':>14}  LBAs of {extent_map.device.disk}"
    for logical, physical, length in extent_map.extents[first:last].tolist():
        if physical < 0:
            yield f"{logical:>16} {'unwritten':>18} {length:>14}"
            continue
        lba = (start + physical) // lba_bytes
        lbas = f"{lba} to {lba + length // lba_bytes - 1}"
        yield f"{logical:>16} {physical:>18} {length:>14}  {lbas}"


def _find(extent_map: ExtentMap, path: str, name: bytes) -> int:
    name = name.removeprefix(extent_map.root.rstrip(b"/") + b"/")
    for file in np.flatnonzero(np.diff(extent_map.name_offsets) == len(name)).tolist():
        if extent_map.name(file) == name:
            return int(file)
    raise BadInputError(
        f"{path} has no file {printable(name)}; give its path from {printable(extent_map.root)}"
    )
