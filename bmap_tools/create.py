"""`python -m bmap_tools create`: map the files of a directory."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from . import file_system, walk
from .atomic import destination
from .console import BadInputError, print_files, print_message, printable, progress
from .extent_map import ExtentMap, IntArray, csr_offsets
from .format import save
from .survey import survey
from .walk import Folder, Walk


def run(root: str, output: str, *, threads: int) -> int:
    """Map the files below `root` in `threads` threads, and write the map to `output` at the end.

    Returns the exit status: 0, or 1 if some of the files could not be mapped.

    Raises:
        BadInputError, UnsupportedStorage, MapFormatError, OSError: no map was written.
    """
    written = destination(output)  # refused before an hour of work
    directory = os.fsencode(os.path.abspath(root))
    found, device = file_system.find(directory)
    tree = _walk(directory, os.fsencode(written))
    with progress("mapping", sum(map(len, tree.folders))) as tick:
        result = survey(tree.folders, directory, found, threads, tick)
    names, name_offsets = _names(tree.folders)
    extent_map = ExtentMap(
        root=directory,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        file_system=found,
        device=device,
        directories=tree.directories,
        names=names,
        name_offsets=name_offsets,
        sizes=result.status[:, 0].copy(),
        inodes=result.status[:, 1].copy(),
        mtimes_ns=result.status[:, 2].copy(),
        ctimes_ns=result.status[:, 3].copy(),
        extent_offsets=csr_offsets(result.counts),
        extents=result.extents,
        unmapped=result.unmapped,
    )
    save(extent_map, output)
    return _report(extent_map, output)


def _walk(root: bytes, output: bytes) -> Walk:
    tree = walk.walk(root, without=output)
    if tree.unreadable:
        lines = [f"{printable(name)}/: {why}" for name, why in sorted(tree.unreadable.items())]
        print_files("these directories could not be listed:", lines)
        raise BadInputError(
            f"nothing was written: the samples in these directories below {printable(root)} would "
            "be missing; get permission to list the directories, or move them elsewhere"
        )
    if not tree.folders:
        raise BadInputError(f"there are no files below {printable(root)}")
    return tree


def _names(folders: Sequence[Folder]) -> tuple[bytes, IntArray]:
    """Join all paths from the root; return the bytes and the offset of each, and of the end."""
    joined, lengths = [], []
    for folder in folders:
        names = folder.split()
        joined.append(folder.prefix + folder.prefix.join(names))
        lengths.append(np.array([len(name) for name in names], np.int64) + len(folder.prefix))
    return b"".join(joined), csr_offsets(np.concatenate(lengths))


def _report(extent_map: ExtentMap, output: str) -> int:
    unmapped = extent_map.unmapped
    if unmapped:
        print_files(
            f"{len(unmapped):,} of {len(extent_map):,} files are not mapped; the map marks them "
            "to be read as files:",
            [f"{printable(extent_map.name(i))}: {why}" for i, why in sorted(unmapped.items())],
        )
    print_message(
        f"{output}: {len(extent_map):,} files, {int(extent_map.sizes.sum()):,} bytes, "
        f"{len(extent_map.extents):,} extents"
    )
    return int(bool(unmapped))
