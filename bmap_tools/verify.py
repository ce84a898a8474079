"""`python -m bmap_tools verify`: compare a map with what there is now."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from . import contents, csr, device, extent_map, walk
from .extent_map import Device, ExtentMap, FileSystem, IntArray
from .progress import progress
from .report import say, say_files, text
from .survey import Survey, Surveyor

_STATUS = ("size", "inode", "mtime", "ctime")


def run(
    path: str,
    *,
    root: str | None = None,
    threads: int,
    sample: int | None = None,
    seed: int = 0,
    compare_bytes: bool = False,
    uri: str | None = None,
) -> int:
    """Compare a map with the status and the extents of its files; answer the exit status.

    Both are needed: to defragment a file moves its data and leaves no trace in its status.

    Args:
        path: the map.
        root: where its files are now; None is where they were.
        threads: how many look at files.
        sample: so many files, by chance; None is all.
        seed: of the chance.
        compare_bytes: compare what the extents hold on the device with the files, too.
        uri: the device, its disk or an image of one of them, to read that from; None is the device
            that the files are on now.

    Returns:
        0 if all is as mapped, else 1.

    Raises:
        BadInputError, UnsupportedStorage, MapFormatError, OSError: they could not be compared.
    """
    loaded = extent_map.load(path)
    directory = loaded.root if root is None else os.fsencode(os.path.abspath(root))
    file_system, disk = device.find(directory)
    arguments = shlex.join([os.fsdecode(directory), "-o", path])
    renew = f"renew it: python -m bmap_tools create {arguments}"
    if changes := list(_device_changes(loaded, file_system, disk)):
        say_files(f"{text(directory)} is not on the device of {path}:", changes, len(changes))
        say(renew)
        return 1
    files = _choice(len(loaded), sample, seed)
    wrong = _changes(loaded, files, Surveyor(directory, file_system, threads))
    if compare_bytes:
        same = files[~np.isin(files, [*wrong, *loaded.unmapped])]
        source = disk.path if uri is None else uri
        with progress("reading", len(same)) as tick:
            wrong |= contents.compare(loaded, same, directory, source, threads, tick)
    if not wrong:
        say(f"{path}: {len(files):,} of {len(loaded):,} files are as mapped")
        return 0
    say_files(
        f"{len(wrong):,} of {len(files):,} files are not as mapped:",
        (f"{text(loaded.name(file))}: {why}" for file, why in sorted(wrong.items())),
        len(wrong),
    )
    say(renew)
    return 1


def _device_changes(loaded: ExtentMap, file_system: FileSystem, disk: Device) -> Iterator[str]:
    """How a device differs from the map's. Its name may: the kernel counts anew at each start."""
    for what, was, now in (
        ("file system", loaded.file_system.type, file_system.type),
        ("UUID of the file system", loaded.file_system.uuid, file_system.uuid),
        ("block size", loaded.file_system.block_size, file_system.block_size),
        ("size in bytes", loaded.device.size, disk.size),
        ("LBA size", loaded.device.logical_block_size, disk.logical_block_size),
        ("start on the disk", loaded.device.start, disk.start),
        ("serial number", loaded.device.serial, disk.serial),
        ("WWID", loaded.device.wwid, disk.wwid),
    ):
        if was != now:
            yield f"{what}: {now}, and not {was}"


def _choice(count: int, sample: int | None, seed: int) -> IntArray:
    """Which files: int64[k], ascending."""
    if sample is None or sample >= count:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, sample, replace=False))


def _changes(loaded: ExtentMap, files: IntArray, surveyor: Surveyor) -> dict[int, str]:
    """File -> how it differs from the map, for those of `files` (ascending) that do."""
    names = [loaded.name(file) for file in files.tolist()]
    closed = frozenset(loaded.name(file) for file in loaded.unmapped)
    with progress("comparing", len(files)) as tick:
        survey = surveyor.survey(walk.folders(names, closed), tick)
    was = np.stack((loaded.sizes, loaded.inodes, loaded.mtimes_ns, loaded.ctimes_ns), axis=1)[files]
    moved = _moved(loaded, files, survey)
    changes: dict[int, str] = {}
    for place in np.flatnonzero((was != survey.status).any(axis=1) | moved).tolist():
        now = survey.status[place].tolist()
        words = _in_words(was[place].tolist(), now)
        if moved[place]:
            words.append(f"extents: {survey.unmapped.get(place, 'they are elsewhere')}")
        if not any(now):
            words = [f"missing: {survey.unmapped[place]}"]
        changes[int(files[place])] = ", ".join(words)
    return changes


def _in_words(was: list[int], now: list[int]) -> list[str]:
    pairs = zip(_STATUS, was, now, strict=True)
    return [f"{what} {after} and not {before}" for what, before, after in pairs if before != after]


def _moved(loaded: ExtentMap, files: IntArray, survey: Survey) -> npt.NDArray[np.bool_]:
    """Which files have other extents than in the map, or none where the map has some: bool[k].

    What is reserved beyond their ends does not count: XFS gives it back when it likes to.
    """
    sizes = loaded.sizes[files]
    starts = loaded.extent_offsets[files]
    counts = loaded.extent_offsets[files + 1] - starts
    before, counts = csr.within(loaded.extents[csr.rows(starts, counts)], counts, sizes)
    after, now_counts = csr.within(survey.extents, survey.counts, sizes)
    moved: npt.NDArray[np.bool_] = counts != now_counts
    alike = np.flatnonzero(~moved)
    then = before[csr.rows(csr.offsets(counts)[alike], counts[alike])]
    now = after[csr.rows(csr.offsets(now_counts)[alike], counts[alike])]
    moved[np.repeat(alike, counts[alike])[(then != now).any(axis=1)]] = True
    for place in survey.unmapped:
        moved[place] |= int(files[place]) not in loaded.unmapped
    return moved
