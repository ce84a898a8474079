"""The rows of a map's files as columns, and back: a few numbers a file, and no object.

A row is `[path, size, inode, mtime_ns, ctime_ns, extents]`. What one row shows to be wrong, types
and ranges of numbers, is refused here; what takes the device or other rows to see, in checks.py.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from . import csr
from .bmap_json import MapFormatError, shown
from .bmap_members import to_bytes, to_text
from .paths import PathChecks

if TYPE_CHECKING:  # extent_map imports this module
    from .extent_map import ExtentMap

COLUMNS = ("path", "size", "inode", "mtime_ns", "ctime_ns", "extents")
UNWRITTEN = -1
"""The physical address of an extent that reads as zeros; null in JSON."""

_FILES_AT_ONCE = 4096
_NUMBERS = COLUMNS[1:5]


class Columns:
    """The columns of the rows that were added, in their order.

    Attributes:
        names: all paths, one after another.
        paths: the checks of `names`, not finished.
        numbers: "size", "inode", "mtime_ns" and "ctime_ns" -> a number a file.
        unmapped: file -> why it has no extents.
    """

    def __init__(self) -> None:
        self.paths = PathChecks()
        self.names = bytearray()
        self.numbers = {name: array("q") for name in _NUMBERS}
        self.unmapped: dict[int, str] = {}
        self._reasons: dict[str, str] = {}  # each text once, however many files have it
        self._name_sizes = array("q")
        self._extent_counts = array("q")
        self._extents = array("q")

    def add(self, rows: Sequence[Any]) -> None:
        """Add rows, at least one, as they come from JSON.

        Raises:
            MapFormatError: one is no row of a map; names the path. No more can be added then.
        """
        try:
            names = self._add(rows)
        except MapFormatError as error:
            for row in rows if len(rows) > 1 else ():
                self.add([row])  # one of them is to blame
            raise MapFormatError(f"{self._entry(rows[0])}: {error}") from None
        self.paths.add(names)

    def _entry(self, row: Any) -> str:
        path = row[0] if isinstance(row, list) and row else None
        return shown(path) if isinstance(path, str) else f"file {len(self._name_sizes)}"

    def _add(self, rows: Sequence[Any]) -> list[bytes]:
        if set(map(type, rows)) != {list} or set(map(len, rows)) != {len(COLUMNS)}:
            raise MapFormatError(f"must be [{', '.join(COLUMNS)}], not {shown(rows[0])}")
        paths, *numbers, extents = zip(*rows, strict=True)
        names = to_bytes(paths)
        if names is None:
            raise MapFormatError(f"not a path: {shown(paths[0])}")
        for name, values in zip(_NUMBERS, numbers, strict=True):
            self.numbers[name].extend(_integers(name, values))
        self._add_extents(extents)
        self.names += b"".join(names)
        self._name_sizes.extend(map(len, names))
        return names

    def _add_extents(self, column: Sequence[Any]) -> None:
        kinds = set(map(type, column))
        if not kinds <= {list, str}:
            raise MapFormatError(f"extents must be a list, or why not: {shown(column[0])}")
        if str in kinds:
            column = self._without_reasons(column)
        extents = list(chain.from_iterable(column))
        if extents:
            self._extents.extend(_extent_numbers(extents))
        if len(extents) == len(column) and all(column):  # mostly
            self._extent_counts.extend(array("q", [1]) * len(column))
        else:
            self._extent_counts.extend(map(len, column))

    def _without_reasons(self, column: Sequence[Any]) -> list[Any]:
        """Keep why files are not mapped, and have no extents instead."""
        reasons = {
            file: reason
            for file, reason in enumerate(column, len(self._name_sizes))
            if isinstance(reason, str)
        }
        if to_bytes(reasons.values()) is None:
            raise MapFormatError(f"not the text of a reason: {shown(column[0])}")
        for file, reason in reasons.items():
            self.unmapped[file] = self._reasons.setdefault(reason, reason)
        return [() if isinstance(extents, str) else extents for extents in column]

    def name_offsets(self) -> csr.IntArray:
        """int64[n + 1]: where in `names` those of the files begin and end."""
        return csr.offsets(self._name_sizes)

    def extent_offsets(self) -> csr.IntArray:
        """int64[n + 1]: where in extents() those of the files begin and end."""
        return csr.offsets(self._extent_counts)

    def extents(self) -> csr.IntArray:
        """int64[m, 3]: logical, physical or UNWRITTEN, length; a view."""
        return as_array(self._extents).reshape(-1, 3)


def as_array(numbers: array[int]) -> csr.IntArray:
    """The same memory as an array; `numbers` cannot grow any more."""
    return np.frombuffer(numbers, np.int64)


def _integers(name: str, values: Sequence[Any]) -> array[int]:
    if set(map(type, values)) == {int}:  # a bool is an int, too, and array() takes it for one
        with suppress(OverflowError):
            return array("q", values)
    raise MapFormatError(f"{name} must be an integer of 64 bits, not {shown(values[0])}")


def _extent_numbers(extents: list[Any]) -> array[int]:
    """Logical, physical and length of one extent after another."""
    if set(map(type, extents)) != {list} or set(map(len, extents)) != {3}:
        raise MapFormatError("each extent must be [logical, physical, length]")
    numbers = list(chain.from_iterable(extents))
    physical = numbers[1::3]
    if UNWRITTEN in physical:
        raise MapFormatError(f"the extents {shown(extents)} have a negative address")
    if None in physical:
        numbers[1::3] = [UNWRITTEN if address is None else address for address in physical]
    return _integers("logical, physical and length", numbers)


def lines(extent_map: ExtentMap) -> Iterator[str]:
    """The rows of a map as JSON, one a file, in ASCII."""
    for start in range(0, len(extent_map), _FILES_AT_ONCE):
        files = slice(start, start + _FILES_AT_ONCE)
        columns = zip(
            to_text(_names(extent_map, files)),
            extent_map.sizes[files].tolist(),
            extent_map.inodes[files].tolist(),
            extent_map.mtimes_ns[files].tolist(),
            extent_map.ctimes_ns[files].tolist(),
            _extents(extent_map, files),
            strict=True,
        )
        for file, row in enumerate(columns, start):
            reason = extent_map.unmapped.get(file)
            yield json.dumps(row if reason is None else (*row[:-1], reason))


def path_checks(extent_map: ExtentMap) -> PathChecks:
    """The checks of a map's names, not finished."""
    checks = PathChecks()
    for start in range(0, len(extent_map), _FILES_AT_ONCE):
        checks.add(_names(extent_map, slice(start, start + _FILES_AT_ONCE)))
    return checks


def _names(extent_map: ExtentMap, files: slice) -> list[bytes]:
    offsets = extent_map.name_offsets[files.start : files.stop + 1].tolist()
    return [extent_map.names[start:stop] for start, stop in pairwise(offsets)]


def _extents(extent_map: ExtentMap, files: slice) -> Iterator[list[list[int | None]]]:
    offsets = extent_map.extent_offsets[files.start : files.stop + 1]
    extents = extent_map.extents[offsets[0] : offsets[-1]].tolist()
    for extent in extents:
        if extent[1] == UNWRITTEN:
            extent[1] = None
    for start, stop in pairwise((offsets - offsets[0]).tolist()):
        yield extents[start:stop]
