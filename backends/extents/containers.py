"""Comparison of containers, files from which ranges are read, with their map.

At the first use, all extents of a container are compared with the map, and the kernel's answers are
kept, each about 17 extents. Later, the kernel is asked again only about the spans just read.
"""

import os

import numpy as np

from bmap_tools import fiemap

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import named
from ...contract.ranges import Spans
from ..files.containers import Containers, changed_error
from ..files.opening import statuses_of_paths
from ..files.samples import SampleFiles
from .freshness import Freshness
from .map import LoadedMap
from .segments import expand

_STATE = [4, 5, 12, 13, 14, 15]  # inode, size, ctime, mtime: words of 8 bytes in struct statx


class MappedContainers:
    """Compares the containers of a catalog with their map; keeps recently used ones open."""

    def __init__(
        self,
        catalog: Catalog,
        loaded: LoadedMap,
        freshness: Freshness,
        files: IntArray,
        lanes: int,
    ) -> None:
        """Open nothing yet; `files`, int64[n], has the map's file for each file of the catalog."""
        self._catalog = catalog
        self._freshness = freshness
        self._files = files
        self._containers = Containers(catalog, SampleFiles(catalog, direct=False), lanes)
        sizes, block = loaded.map.sizes[files], loaded.map.file_system.block_size
        self._ends = -(-sizes // block) * block  # space reserved beyond this end is ignored
        times = np.divmod((loaded.map.ctimes_ns[files], loaded.map.mtimes_ns[files]), 10**9)
        parts = loaded.map.inodes[files], sizes, times[0][0], times[1][0], times[0][1], times[1][1]
        self._states = np.stack(parts, axis=1)
        self._answers: dict[int, IntArray] = {}  # by file of the catalog
        for file in catalog.guards or ():  # bytes written through a mapping may be in memory only
            path = catalog.file_path(file)
            with freshness.missing_is_stale(), open(path, "rb", buffering=0) as opened:
                os.fdatasync(opened.fileno())

    def check(self, spans: Spans, lane: int) -> None:
        """Refuse files of `spans` that differ from the map; the error names the batch's first.

        Raises:
            StaleMapError: a container differs.
            ContainerChangedError: a container lacks a guard.
            OSError: the state of a container cannot be read; names its path.
        """
        used = files = list(dict.fromkeys(spans.files[spans.slots.argsort()].tolist()))
        can_move = self._freshness.can_move[self._files[files]].tolist()
        if not all(can_move):
            self._check_paths(files)
            files = [file for file, can in zip(files, can_move, strict=True) if can]
        try:
            while files:
                fds = self._open(files[: self._containers.at_once], lane)
                self._check(files[: len(fds)], fds, spans)
                files = files[len(fds) :]
        finally:
            self._containers.release(lane)
        for altered in self._catalog.altered(used):
            raise changed_error(self._catalog.file_path(altered))

    def close(self) -> None:
        """Close the containers. Closing twice is fine."""
        self._containers.close()

    def _open(self, files: list[int], lane: int) -> list[int]:
        try:
            return self._containers.open(files, lane)
        except OSError:
            # If a container is gone, the map is stale, which is the better explanation.
            self._check_paths(files)
            raise

    def _check_paths(self, files: list[int]) -> None:
        paths = self._catalog.file_paths(np.array(files))
        with self._freshness.missing_is_stale():
            self._freshness.check_state(self._files[files], paths, statuses_of_paths(paths))

    def _check(self, files: list[int], fds: list[int], spans: Spans) -> None:
        with self._freshness.missing_is_stale():
            status = self._containers.statuses(files)
        if (status.view(np.int64).reshape(len(files), -1)[:, _STATE] != self._states[files]).any():
            self._check_paths(files)
        answers = [self._answers_about(file, spans) for file in files]
        owners = np.repeat(np.arange(len(files)), list(map(len, answers)))
        # If a file has more than 17 extents, the kernel may have to read them from the disk.
        few = owners.size <= len(files)
        fds_asked = [fds[owner] for owner in owners.tolist()]
        same = fiemap.hold(fds_asked, np.concatenate(answers), keep_lock=few)
        # If an answer differs, all extents of its container are compared again.
        others = {*owners[~same].tolist()}
        for index, file in enumerate(files):
            if index in others or file not in self._answers:
                self._learn(file, fds[index])

    def _answers_about(self, file: int, spans: Spans) -> IntArray:
        answers = self._answers.get(file, fiemap.NO_ANSWERS)
        if len(answers) <= 1:
            return answers
        # Only those of the spans: a container may have thousands of extents.
        own, begins = spans.files == file, answers[:, 0]
        first = np.searchsorted(begins, spans.starts[own], "right") - 1
        stop = np.searchsorted(begins, spans.starts[own] + spans.sizes[own])
        return answers[np.unique(expand(first, stop - first)[1])]

    def _learn(self, file: int, fd: int) -> None:
        path = self._catalog.file_path(file)
        with named(path):
            answers = fiemap.answers(fd, int(self._ends[file]))
        self._freshness.require_extents(int(self._files[file]), path, fiemap.extents_in(answers))
        self._answers[file] = answers
