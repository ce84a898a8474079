"""The state and the extents of many files, as they are now."""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from .extent_map import FileSystem, IntArray
from .inspection import (
    UNKNOWN_STATUS,
    Inspector,
    Outcome,
    Status,
    inspect_closed,
    settling_ns,
)
from .parallel import in_threads
from .report import reason
from .walk import Folder

Tick: TypeAlias = Callable[[int], None]
"""Is told how many files are done."""

KEPT_CHANGING = "it kept changing while it was mapped"

_FILES_PER_TASK = 256  # what a thread does before it looks whether it should end
_ATTEMPTS = 6


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What was seen of n files, in the order in which they were named.

    Attributes:
        status: int64[n, 4]: size (bytes), inode, mtime and ctime (ns); all 0 where it is unknown.
        counts: int64[n], how many extents each file has.
        extents: int64[m, 3]: logical, physical and length in bytes, as in an ExtentMap.
        unmapped: file -> why it has no extents.
    """

    status: IntArray
    counts: IntArray
    extents: IntArray
    unmapped: dict[int, str]


class Surveyor:
    """Looks at files below a root, in several threads.

    Args:
        root: the directory that the files' names are relative to.
        file_system: the one that it is on; files on another one are not mapped.
        threads: how many.
    """

    def __init__(self, root: bytes, file_system: FileSystem, threads: int) -> None:
        self._root = root
        self._threads = threads
        self._look = partial(_look, root, os.stat(root).st_dev, file_system)

    def survey(self, folders: Sequence[Folder], tick: Tick, attempts: int = _ATTEMPTS) -> Survey:
        """Look at the files of `folders`, and again at those that change meanwhile.

        `tick` is called in the caller's thread. An interrupt ends the threads before it goes on.
        """
        columns = _Columns()
        with in_threads(self._threads, self._look, _tasks(folders)) as parts:
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
        second = self.survey(_chosen(folders, again), lambda _: None, attempts - 1)
        return _merge(first, again, second)


class _Columns:
    """A survey in the making, with no object for a file."""

    def __init__(self) -> None:
        self.status = array("q")
        self.counts = array("q")
        self.extents = array("q")
        self.unmapped: dict[int, str] = {}
        self.again: list[int] = []  # those that changed while they were looked at

    def __len__(self) -> int:
        return len(self.counts)

    def add(self, status: Status, outcome: Outcome) -> None:
        """The next file."""
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
        """The next files."""
        files = len(self.counts)
        self.status.extend(other.status)
        self.counts.extend(other.counts)
        self.extents.extend(other.extents)
        self.unmapped.update({files + file: why for file, why in other.unmapped.items()})
        self.again += [files + file for file in other.again]

    def survey(self) -> Survey:
        """The same as arrays."""
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


def _look(root: bytes, device: int, file_system: FileSystem, task: list[Folder]) -> _Columns:
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
                if name in folder.closed:
                    columns.add(*inspect_closed(name, directory))
                else:
                    columns.add(*inspector.inspect(name, directory))
        finally:
            os.close(directory)
    return columns


def _chosen(folders: Sequence[Folder], files: IntArray) -> list[Folder]:
    """Of all files of `folders` those with these numbers, ascending."""
    chosen, first = [], 0
    for folder in folders:
        last = first + len(folder)
        own = files[slice(*np.searchsorted(files, (first, last)))] - first
        if own.size:
            names = folder.split()
            chosen.append(folder.only([names[file] for file in own.tolist()]))
        first = last
    return chosen


def _merge(first: Survey, files: IntArray, second: Survey) -> Survey:
    """The first survey with `files`, which have no extents in it, as the second saw them."""
    status, counts = first.status.copy(), first.counts.copy()
    status[files], counts[files] = second.status, second.counts
    is_second = np.zeros(len(counts), bool)
    is_second[files] = True
    row_is_second = np.repeat(is_second, counts)
    extents = np.empty((len(row_is_second), 3), np.int64)
    extents[row_is_second], extents[~row_is_second] = second.extents, first.extents
    unmapped = first.unmapped | {int(files[file]): why for file, why in second.unmapped.items()}
    return Survey(status, counts, extents, unmapped)
