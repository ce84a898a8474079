"""`python -m bmap_tools create`: make the map of a directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from . import csr, device, extent_map, legacy, walk
from .extent_map import ExtentMap, IntArray
from .progress import progress
from .report import BadInputError, say, say_files, text
from .survey import Survey, Surveyor
from .walk import Folder, Tree


def run(root: str, output: str, *, threads: int, old: str | None = None) -> int:
    """Map the files below `root`, and write the map to `output`; answer the exit status.

    Args:
        root: the directory.
        output: the file that becomes the map once that is complete, and stays as it is until then.
        threads: how many look at files.
        old: a map of the earlier prototype; then only its files are mapped, and it must be right.

    Returns:
        0, or 1 if a file in the map is not mapped.

    Raises:
        BadInputError, UnsupportedStorage, MapFormatError, OSError: there is no new map.
    """
    _check_output(output)
    directory = os.fsencode(os.path.abspath(root))
    file_system, disk = device.find(directory)
    surveyor = Surveyor(directory, file_system, threads)
    if old is None:
        tree = _walk(directory, os.fsencode(os.path.realpath(output)))
        survey = _survey(surveyor, tree.folders)
    else:
        blocks = legacy.load(old, directory)
        tree = Tree(walk.folders(blocks), walk.directories(directory))
        survey = _survey(surveyor, tree.folders)
        legacy.check(old, blocks, survey)
    names, name_offsets = _names(tree.folders)
    made = ExtentMap(
        root=directory,
        created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        file_system=file_system,
        device=disk,
        directories=tree.directories,
        names=names,
        name_offsets=name_offsets,
        sizes=survey.status[:, 0].copy(),
        inodes=survey.status[:, 1].copy(),
        mtimes_ns=survey.status[:, 2].copy(),
        ctimes_ns=survey.status[:, 3].copy(),
        extent_offsets=csr.offsets(survey.counts),
        extents=survey.extents,
        unmapped=survey.unmapped,
    )
    extent_map.save(made, output)
    return _report(made, output)


def _check_output(output: str) -> None:
    """Refuse now what could not be written after an hour of work."""
    directory = os.path.dirname(os.path.abspath(output))
    if os.path.lexists(output) and not os.path.isfile(output):
        raise BadInputError(f"{output} is there and is no file; give another name")
    if not os.path.isdir(directory):
        raise BadInputError(f"{output} cannot be written: there is no directory {directory}")
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        raise BadInputError(f"{output} cannot be written: no permission to make a file there")


def _walk(root: bytes, output: bytes) -> Tree:
    tree = walk.walk(root, without=output)
    if tree.unreadable:
        lines = (f"{text(name)}/: {why}" for name, why in sorted(tree.unreadable.items()))
        say_files("these directories could not be listed:", lines, len(tree.unreadable))
        raise BadInputError(
            f"nothing was written: without what is in these directories below {text(root)} samples "
            "would be missing; get the right to list them, or move them elsewhere"
        )
    if not tree.folders:
        raise BadInputError(f"there are no files below {text(root)}")
    return tree


def _survey(surveyor: Surveyor, folders: Sequence[Folder]) -> Survey:
    with progress("mapping", sum(map(len, folders))) as tick:
        return surveyor.survey(folders, tick)


def _names(folders: Sequence[Folder]) -> tuple[bytes, IntArray]:
    """All names from the root, one after the other, and where each begins and the last ends."""
    joined, lengths = [], []
    for folder in folders:
        names = folder.split()
        joined.append(folder.prefix + folder.prefix.join(names))
        lengths.append(np.array([len(name) for name in names], np.int64) + len(folder.prefix))
    return b"".join(joined), csr.offsets(np.concatenate(lengths))


def _report(made: ExtentMap, output: str) -> int:
    if made.unmapped:
        say_files(
            f"{len(made.unmapped):,} of {len(made):,} files are not mapped; the map marks them, "
            "to be read as files:",
            (f"{text(made.name(file))}: {why}" for file, why in sorted(made.unmapped.items())),
            len(made.unmapped),
        )
    say(
        f"{output}: {len(made):,} files, {int(made.sizes.sum()):,} bytes, "
        f"{len(made.extents):,} extents"
    )
    return int(bool(made.unmapped))
