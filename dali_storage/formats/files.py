"""Containers and their indexes: files of this machine, or objects named by URLs."""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import BinaryIO

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog, open_regular, state_of
from ..contract.errors import named
from ..contract.objects import scheme
from ..contract.ranges import Ranges
from ..contract.remote import Part, Remote

MOST = 2**63 - 1
"""The size of a missing file: more bytes than any file has."""
_AT_ONCE = 64  # indexes or parts in memory at the same time
_LANES, _A_LANE = 16, 4  # threads, which wait for the storage; parts that one reads at a time
_A_PART = 256  # files of which a thread looks up the states at a time
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def compressed(head: bytes) -> str:
    """Return a message for the first bytes of a compressed file; "" for others."""
    names = (name for magic, name in _COMPRESSED.items() if head.startswith(magic))
    return "".join(f"it is compressed with {name}; decompress it" for name in names)


@dataclass(frozen=True, slots=True)
class Files:
    """Reads containers and their indexes.

    Attributes:
        remote: reads objects; None: there are only files.
    """

    remote: Remote | None = None

    def catalog(self, names: Sequence[bytes]) -> Catalog:
        """Return a catalog of the containers, all files or all objects, without ranges yet.

        Sizes and versions of objects are requested from the store.

        Raises:
            OSError: an object does not exist, or the request fails; names the object.
        """
        found = Catalog.from_names(names, ())
        if not scheme(names[0]):
            return found
        sizes, versions = self._asked(names[0]).heads(names)
        return replace(found, sizes=sizes, versions=versions)

    @contextmanager
    def opened(self, names: Sequence[bytes]) -> Iterator[Iterator[BinaryIO]]:
        """Yield files or objects, one after another, each open at its start.

        All are files or all are objects. Objects are read as a whole.
        """
        with closing(self._each(names)) as files:
            yield files

    def parts(self, catalog: Catalog, parts: Sequence[tuple[int, int, int]]) -> Iterator[bytes]:
        """Yield bytes of containers, for each (container, position, largest number of bytes)."""
        with ThreadPoolExecutor(_LANES) as pool:
            for first in range(0, len(parts), _AT_ONCE):
                rows = parts[first : first + _AT_ONCE]
                some = [(catalog.file_path(which), start, size) for which, start, size in rows]
                if catalog.sizes is not None:
                    yield from self._asked(some[0][0]).contents(some)
                    continue
                few = [some[at : at + _A_LANE] for at in range(0, len(some), _A_LANE)]
                yield from chain.from_iterable(pool.map(_parts, few))

    def _each(self, names: Sequence[bytes]) -> Generator[BinaryIO, None, None]:
        if scheme(names[0]):
            for first in range(0, len(names), _AT_ONCE):
                some: list[Part] = [(name, 0, None) for name in names[first : first + _AT_ONCE]]
                yield from map(io.BytesIO, self._asked(names[0]).contents(some))
            return
        for name in names:
            with open(os.fsdecode(name), "rb") as file:  # perhaps a pipe of the shell's
                yield file

    def _asked(self, name: bytes) -> Remote:
        if self.remote is None:
            what = f"{os.fsdecode(name)!r} is an object, and this backend reads only files"
            raise ValueError(f"{what}; copy the object, and give a local path")
        return self.remote


LOCAL = Files()


def noting_states(containers: Catalog) -> Catalog:
    """Add the `states` of files, but not of objects and missing files.

    Call this before reading: then every later change is noticed.
    """
    if containers.sizes is not None:
        return containers
    states = np.zeros((containers.file_count, 4), np.int64)
    every = np.arange(containers.file_count)
    some = [every[at : at + _A_PART] for at in range(0, every.size, _A_PART)]
    with ThreadPoolExecutor(_LANES) as pool:  # a network file system answers after a while
        for part, its in zip(some, pool.map(partial(_states, containers), some), strict=True):
            states[part] = its
    return replace(containers, states=states)


def sizes(containers: Catalog, unknown: Sequence[type[OSError]] = ()) -> IntArray:
    """Return the sizes of files, int64[files]; `MOST` for a file that raises an `unknown` error.

    Other errors are raised, with the path of the file.
    """
    if containers.sizes is not None:
        return containers.sizes
    states = containers.states
    known = np.zeros((containers.file_count, 4), np.int64) if states is None else states
    found = np.where(known[:, 0] == 0, MOST, known[:, 1])
    for file in np.flatnonzero(known[:, 0] == 0).tolist():
        with suppress(*unknown), named(path := containers.file_path(file)):
            found[file] = os.stat(path).st_size
    return found


def assembled(
    containers: Catalog,
    places: Sequence[tuple[IntArray, IntArray]],
    lacks: str = "has no samples",
    pieces: int = 1,
) -> Catalog:
    """Add the samples to a catalog of containers.

    Args:
        containers: the files or objects, without ranges.
        places: the starts and sizes of the pieces in each of them, in bytes: int64 both.
        lacks: the end of the message if there are no samples.
        pieces: of each sample.

    Raises:
        ValueError: there are no samples.
    """
    counts = np.array([len(starts) // pieces for starts, _ in places], np.int64)
    if not counts.any():
        what = repr(os.fsdecode(containers.file_path(0)))
        raise ValueError(f"path {what}{', ...' * (len(places) > 1)} {lacks}")
    ranges = Ranges.of_files(places)
    return replace(containers, ranges=ranges, pieces=pieces, containers=counts)


def _states(containers: Catalog, files: IntArray) -> IntArray:
    states = np.zeros((files.size, 4), np.int64)
    for row, path in enumerate(containers.file_paths(files)):
        with suppress(OSError):  # reading the file will raise
            states[row] = state_of(os.stat(path))
    return states


def _parts(parts: Sequence[Part]) -> list[bytes]:
    found: list[bytes] = []
    for path, some in groupby(parts, itemgetter(0)):
        with open_regular(path) as file, named(path):
            found += [os.pread(file.fileno(), size or 0, start) for _, start, size in some]
    return found
