"""The status and the extents of many files, as they are now."""

from __future__ import annotations

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

from .console import Tick, reason
from .extent_map import FileSystem, IntArray
from .inspection import UNKNOWN_STATUS, Inspector, Outcome, Status, inspect_unopened, settling_ns
from .walk import Folder

Task = TypeVar("Task")
Result = TypeVar("Result")

KEPT_CHANGING = "it kept changing while it was mapped"

_FILES_PER_TASK = 256  # what a thread does before it checks whether it should end
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The status and the extents of n files, in the order in which they were listed.

    Attributes:
        status: int64[n, 4]: size (bytes), inode, mtime and ctime (ns); all 0 if unknown.
        counts: int64[n], the number of extents of each file.
        extents: int64[m, 3]: logical, physical and length in bytes, as in an ExtentMap.
        unmapped: index of a file -> why it has no extents.
    """

    status: IntArray
    counts: IntArray
    extents: IntArray
    unmapped: dict[int, str]


class Surveyor:
    """Inspects files below a root, in several threads.

    Args:
        root: the directory that the files' names are relative to.
        file_system: of the root; files on another one are not mapped.
        threads: their number.
    """

    def __init__(self, root: bytes, file_system: FileSystem, threads: int) -> None:
        self._root = root
        self._threads = threads
        self._inspect = partial(_inspect, root, os.stat(root).st_dev, file_system)

    def survey(self, folders: Sequence[Folder], tick: Tick, attempts: int = _ATTEMPTS) -> Survey:
        """Inspect the files of `folders`, and inspect those again that change meanwhile.

        `tick` is called in the caller's thread. After an interrupt no thread is running any more.
        """
        columns = _Columns()
        with in_threads(self._threads, self._inspect, _tasks(folders)) as parts:
            for part in parts:
                columns.extend(part)
                tick(len(columns))
        if not columns.again:
            return columns.survey()
        if attempts == 1:
            columns.unmapped.update(dict.fromkeys(columns.again, KEPT_CHANGING))
            return columns.survey()
        again = np.array(columns.again, np.int64)
        first = columns.survey()
        time.sleep(max(map(settling_ns, first.status[again, 3].tolist())) / 1e9)
        second = self.survey(_select(folders, again), lambda _: None, attempts - 1)
        return _merge(first, again, second)


class _Columns:
    """A survey under construction, without an object per file."""

    def __init__(self) -> None:
        self.status = array("q")
        self.counts = array("q")
        self.extents = array("q")
        self.unmapped: dict[int, str] = {}
        self.again: list[int] = []  # files that changed while they were inspected

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, status: Status, outcome: Outcome) -> None:
        """Add the next file."""
        file = len(self.counts)
        self.status.extend(status)
        if isinstance(outcome, list):
            self.counts.append(len(outcome))
            for extent in outcome:
                self.extents.extend(extent)
            return
        self.counts.append(0)
        if outcome is None:
            self.again.append(file)
        else:
            self.unmapped[file] = outcome

    def extend(self, other: _Columns) -> None:
        """Add the next files."""
        files = len(self.counts)
        self.status.extend(other.status)
        self.counts.extend(other.counts)
        self.extents.extend(other.extents)
        self.unmapped.update({files + file: why for file, why in other.unmapped.items()})
        self.again += [files + file for file in other.again]

    def survey(self) -> Survey:
        """The result, as arrays."""
        return Survey(
            np.array(self.status, np.int64).reshape(-1, 4),
            np.array(self.counts, np.int64),
            np.array(self.extents, np.int64).reshape(-1, 3),
            self.unmapped,
        )


def _tasks(folders: Sequence[Folder]) -> Iterator[list[Folder]]:
    """The same files in tasks of about `_FILES_PER_TASK`: parts of a folder, or many folders."""
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


def _inspect(root: bytes, device: int, file_system: FileSystem, task: list[Folder]) -> _Columns:
    columns = _Columns()
    inspector = Inspector(device, file_system)
    for folder in task:
        names = folder.split()
        try:
            directory = os.open(os.path.join(root, folder.prefix), os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            for _ in names:
                columns.add(UNKNOWN_STATUS, reason(error))
            continue
        try:
            for name in names:
                if name in folder.special:
                    columns.add(*inspect_unopened(name, directory))
                else:
                    columns.add(*inspector.inspect(name, directory))
        finally:
            os.close(directory)
    return columns


def _select(folders: Sequence[Folder], files: IntArray) -> list[Folder]:
    """The files of `folders` with these indices, which ascend."""
    selected, first = [], 0
    for folder in folders:
        last = first + len(folder)
        own = files[slice(*np.searchsorted(files, (first, last)))] - first
        if own.size:
            names = folder.split()
            selected.append(folder.only([names[file] for file in own.tolist()]))
        first = last
    return selected


def _merge(first: Survey, files: IntArray, second: Survey) -> Survey:
    """The first survey, with `files`, which have no extents in it, replaced by the second."""
    status, counts = first.status.copy(), first.counts.copy()
    status[files], counts[files] = second.status, second.counts
    is_second = np.zeros(len(counts), bool)
    is_second[files] = True
    row_is_second = np.repeat(is_second, counts)
    extents = np.empty((len(row_is_second), 3), np.int64)
    extents[row_is_second], extents[~row_is_second] = second.extents, first.extents
    unmapped = first.unmapped | {int(files[file]): why for file, why in second.unmapped.items()}
    return Survey(status, counts, extents, unmapped)


@contextmanager
def in_threads(
    threads: int, function: Callable[[Task], Result], tasks: Iterable[Task]
) -> Iterator[Iterator[Result]]:
    """The results of `function` for all tasks, in order.

    No thread is running any more when the block is left. An exception, such as an interrupt, waits
    only for the tasks that are running, and cancels the others.
    """
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield pool.map(function, tasks)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
