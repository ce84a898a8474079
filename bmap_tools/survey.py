"""Survey of the current status and extents of many files."""

import os
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from . import inspection
from .console import Tick, reason
from .extent_map import FileSystem, IntArray
from .inspection import Inspected
from .walk import Folder

Task = TypeVar("Task")
Result = TypeVar("Result")

_FILES_PER_TASK = 256  # between two checks of a thread for the end
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The status and the extents of n files, in the order of their list.

    Attributes:
        status: int64[n, 4]: size (bytes), inode, mtime and ctime (ns); all 0 if unknown.
        counts: int64[n], the number of extents of each file.
        extents: int64[m, 3]: logical, physical and length in bytes, as in an ExtentMap.
        unmapped: index of a file -> the reason why there are no extents.
    """

    status: IntArray
    counts: IntArray
    extents: IntArray
    unmapped: dict[int, str]


def survey(
    folders: Sequence[Folder], root: bytes, file_system: FileSystem, threads: int, tick: Tick
) -> Survey:
    """Inspect files below `root` in several threads; files on other file systems are not mapped.

    `tick` is called in the caller's thread. After an interrupt no thread is running any more.
    """
    status, counts, extents = array("q"), array("q"), array("q")
    unmapped: dict[int, str] = {}
    run = partial(_inspect_task, root, os.stat(root).st_dev, file_system)
    with in_threads(threads, run, _tasks(folders)) as parts:
        for part in parts:
            for found, outcome in part:
                status.extend(found)
                if isinstance(outcome, str):
                    unmapped[len(counts)] = outcome
                    outcome = []
                counts.append(len(outcome))
                for extent in outcome:
                    extents.extend(extent)
            tick(len(counts))
    return Survey(
        np.array(status, np.int64).reshape(-1, 4),
        np.array(counts, np.int64),
        np.array(extents, np.int64).reshape(-1, 3),
        unmapped,
    )


def _tasks(folders: Sequence[Folder]) -> Iterator[list[Folder]]:
    """Divide files into tasks of about `_FILES_PER_TASK`: parts of a folder, or many folders."""
    task: list[Folder] = []
    files = 0
    for folder in folders:
        for part in folder.parts(_FILES_PER_TASK):
            task.append(part)
            files += len(part)
            if files >= _FILES_PER_TASK:
                yield task
                task, files = [], 0
    if task:
        yield task


def _inspect_task(
    root: bytes, device: int, file_system: FileSystem, task: Sequence[Folder]
) -> list[Inspected]:
    found: list[Inspected] = []
    for folder in task:
        try:
            directory = os.open(os.path.join(root, folder.prefix), os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            found += [(inspection.UNKNOWN_STATUS, reason(error))] * len(folder)
            continue
        try:
            found += _inspect_folder(folder, directory, device, file_system)
        finally:
            os.close(directory)
    return found


def _inspect_folder(
    folder: Folder, directory: int, device: int, file_system: FileSystem
) -> list[Inspected]:
    """Inspect the files of a folder, and repeat this for files that change meanwhile."""

    def look(name: bytes) -> Inspected:
        if name in folder.special:
            return inspection.inspect_unopened(name, directory)
        return inspection.inspect(name, directory, device, file_system)

    names = folder.split()
    found = [look(name) for name in names]
    for _ in range(_ATTEMPTS - 1):
        again = [i for i, (_, outcome) in enumerate(found) if outcome == inspection.KEPT_CHANGING]
        if not again:
            break
        time.sleep(max(inspection.settling_ns(found[file][0][3]) for file in again) / 1e9)
        for file in again:
            found[file] = look(names[file])
    return found


@contextmanager
def in_threads(
    threads: int, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Iterator[Result]]:
    """Iterate over the results of `function` for all tasks, in order.

    No thread is running any more after the block. An exception, such as an interrupt, waits only
    for running tasks, and cancels the others.
    """
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool.map(function, tasks)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
