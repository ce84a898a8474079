"""`python -m bmap_tools verify`: compare a map with the current files."""

import os
import shlex
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from . import comparison, file_system, walk
from .console import print_files, print_message, printable, progress
from .extent_map import Device, ExtentMap, FileSystem, IntArray, csr_rows, without_reserved
from .format import load
from .survey import Survey, survey

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
    """Compare a map with the status and the extents of its files.

    Both are needed: defragmenting a file moves its data and leaves no trace in its status.

    The files are in `root`, or else in the mapped root. `sample` and `seed` choose so many files at
    random. `compare_bytes` also compares their bytes with `uri`: the device, its disk or an image
    of one of them; None is the current device of the files.

    Returns the exit status: 0 if all files match the map, else 1.

    Raises:
        BadInputError, UnsupportedStorage, MapFormatError, OSError: the comparison was not possible.
    """
    extent_map = load(path)
    directory = extent_map.root if root is None else os.fsencode(os.path.abspath(root))
    found, device = file_system.find(directory)
    arguments = shlex.join([os.fsdecode(directory), "-o", path])
    renew = f"renew the map: python -m bmap_tools create {arguments}"
    if changes := list(_device_changes(extent_map, found, device)):
        print_files(f"{printable(directory)} is not on the device of {path}:", changes)
        print_message(renew)
        return 1
    files = np.arange(len(extent_map))
    if sample is not None and sample < len(files):
        files = np.sort(np.random.default_rng(seed).choice(files, sample, replace=False))
    special = frozenset(map(extent_map.name, extent_map.unmapped))
    folders = walk.folders(map(extent_map.name, files.tolist()), special)
    with progress("comparing", len(files)) as tick:
        now = survey(folders, directory, found, threads, tick)
    wrong = _file_changes(extent_map, files, now)
    if compare_bytes:
        same = files[~np.isin(files, [*wrong, *extent_map.unmapped])]
        source = device.path if uri is None else uri
        with progress("reading", len(same)) as tick:
            wrong |= comparison.compare(extent_map, same, directory, source, threads, tick)
    if not wrong:
        print_message(f"{path}: {len(files):,} of {len(extent_map):,} files are as mapped")
        return 0
    lines = [f"{printable(extent_map.name(file))}: {why}" for file, why in sorted(wrong.items())]
    print_files(f"{len(wrong):,} of {len(files):,} files are not as mapped:", lines)
    print_message(renew)
    return 1


def _device_changes(extent_map: ExtentMap, found: FileSystem, device: Device) -> Iterator[str]:
    """List differences to the mapped device. The name may differ: each boot renumbers devices."""
    for what, was, now in (
        ("file system", extent_map.file_system.type, found.type),
        ("UUID of the file system", extent_map.file_system.uuid, found.uuid),
        ("block size", extent_map.file_system.block_size, found.block_size),
        ("size in bytes", extent_map.device.size, device.size),
        ("LBA size", extent_map.device.logical_block_size, device.logical_block_size),
        ("start on the disk", extent_map.device.start, device.start),
        ("serial number", extent_map.device.serial, device.serial),
        ("WWID", extent_map.device.wwid, device.wwid),
    ):
        if was != now:
            yield f"{what}: {now}, not {was}"


def _file_changes(extent_map: ExtentMap, files: IntArray, now: Survey) -> dict[int, str]:
    """Collect the files that differ from the map: index of a file -> the differences."""
    times = extent_map.mtimes_ns, extent_map.ctimes_ns
    was = np.stack((extent_map.sizes, extent_map.inodes, *times), axis=1)[files]
    moved = _moved(extent_map, files, now)
    changes: dict[int, str] = {}
    for index in np.flatnonzero((was != now.status).any(axis=1) | moved).tolist():
        status = now.status[index].tolist()
        pairs = zip(_STATUS, was[index].tolist(), status, strict=True)
        differences = [
            f"{what} {after}, not {before}" for what, before, after in pairs if before != after
        ]
        if moved[index]:
            differences.append(f"extents: {now.unmapped.get(index, 'they have moved')}")
        if not any(status):
            differences = [f"missing: {now.unmapped[index]}"]
        changes[int(files[index])] = ", ".join(differences)
    return changes


def _moved(extent_map: ExtentMap, files: IntArray, now: Survey) -> npt.NDArray[np.bool_]:
    """bool[k]: true for files with other extents than in the map, or no longer mappable.

    Space reserved beyond the end of a file is ignored: XFS may release this at any time.
    """
    sizes, starts = extent_map.sizes[files], extent_map.extent_offsets[files]
    counts = extent_map.extent_offsets[files + 1] - starts
    before, counts = without_reserved(extent_map.extents[csr_rows(starts, counts)], counts, sizes)
    after, now_counts = without_reserved(now.extents, now.counts, sizes)
    alike = counts == now_counts
    differ = before[np.repeat(alike, counts)] != after[np.repeat(alike, now_counts)]
    owners = np.repeat(np.flatnonzero(alike), counts[alike])
    moved: npt.NDArray[np.bool_] = ~alike
    moved[owners[differ.any(axis=1)]] = True
    for index in now.unmapped:
        moved[index] |= int(files[index]) not in extent_map.unmapped
    return moved
