"""The samples of a data set as columns: names and labels.

Names are bytes: they need not be valid text. They are joined to the root as DALI does it
(`joinpath_bytes()`, loader/filesystem.h).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ._types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Catalog:
    """The samples in their order, as columns: 12 bytes a sample beside the bytes of its name.

    Attributes:
        root: the directory that names are relative to; empty for the current directory.
        names: all names, one after another, nothing in between; none is empty.
        offsets: int64[n + 1], bytes: the name of sample i is `names[offsets[i]:offsets[i + 1]]`.
        labels: int32[n].
    """

    root: bytes
    names: bytes
    offsets: IntArray
    labels: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, sample: int) -> bytes:
        """The name of a sample as it was found or given: DALI's source_info."""
        return self.names[self.offsets[:-1][sample] : self.offsets[1:][sample]]

    def path(self, sample: int) -> bytes:
        """The path to open: the name joined to the root, unless it is absolute (join_path)."""
        return join_path(self.root, self.name(sample))

    def paths(self, samples: IntArray) -> list[bytes]:
        """The paths of `samples` (int64[n], indices), in their order.

        Raises:
            IndexError: there is no such sample.
        """
        # Each batch comes through here: what can be done once for a batch is not done per sample.
        starts, stops = self.offsets[:-1][samples], self.offsets[1:][samples]
        names, prefix = self.names, _prefix(self.root)
        ranges = zip(starts.tolist(), stops.tolist(), strict=True)
        if (np.frombuffer(names, np.uint8)[starts] == ord("/")).any():
            return [_join(prefix, names[start:stop]) for start, stop in ranges]
        return [prefix + names[start:stop] for start, stop in ranges]


def _prefix(root: bytes) -> bytes:
    return root if not root or root.endswith(b"/") else root + b"/"


def _join(prefix: bytes, name: bytes) -> bytes:
    return name if name.startswith(b"/") else prefix + name


def join_path(root: bytes, name: bytes) -> bytes:
    """The path of a name in the directory `root`; an absolute name is its own path."""
    return _join(_prefix(root), name)


class Columns:
    """A catalog in the making, with no object for a sample or a directory."""

    def __init__(self) -> None:
        self.names = bytearray()
        self.sizes = array("q")
        self.labels = array("q")

    def extend(self, prefix: bytes, names: Sequence[bytes], labels: Iterable[int]) -> None:
        """Append n samples, their names prefixed with `prefix`."""
        for start in range(0, len(names), 4096):  # in parts: join() needs 80 bytes for each piece
            self.names += prefix.join([b"", *names[start : start + 4096]])
        self.sizes.extend(map(len(prefix).__add__, map(len, names)))
        self.labels.extend(labels)

    def catalog(self, root: bytes) -> Catalog:
        """The catalog of the samples appended so far."""
        offsets = np.zeros(len(self.sizes) + 1, np.int64)
        np.cumsum(self.sizes, out=offsets[1:])
        # astype() keeps the low 32 bits, as DALI does where it makes an int of a long.
        return Catalog(root, bytes(self.names), offsets, np.asarray(self.labels).astype(np.int32))


def from_names(
    names: Sequence[bytes], labels: Iterable[int] | npt.NDArray[np.integer], root: bytes = b""
) -> Catalog:
    """A catalog of n names, none of them empty, and their n labels. Nothing is checked."""
    columns = Columns()
    columns.extend(b"", names, labels)
    return columns.catalog(root)


class Tree(Protocol):
    """A directory of class directories, wherever it is known from: what samples are chosen from."""

    @property
    def root(self) -> bytes:
        """The path of the directory."""

    def directories(self) -> list[bytes]:
        """The names of all directories directly in the root, in any order; links to one count."""

    def files(self, directory: bytes) -> list[bytes]:
        """The names of all files directly in one of `directories()`, in any order; links count."""
