"""Conversion of a map's rows to columns, and back: a few numbers per file, without objects.

A row is `[path, size, inode, mtime_ns, ctime_ns, extents]`. Wrong types and numbers out of range
are refused here; `checks` refuses contradictions to the device or to other rows.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any

import numpy as np

from .bmap_json import MapFormatError, short_repr, to_bytes, to_text
from .checks import PathChecks
from .extent_map import UNWRITTEN, ExtentMap, IntArray

COLUMNS = ("path", "size", "inode", "mtime_ns", "ctime_ns", "extents")

_FILES_PER_GROUP = 4096
_NUMBERS = COLUMNS[1:5]


class Columns:
    """The columns of the added rows, in order.

    Attributes:
        paths: the checks of `names`, not yet finished.
        names: all paths, one after another.
        name_sizes: bytes per path.
        numbers: "size", "inode", "mtime_ns" and "ctime_ns" -> one number per file.
        extent_counts: one per file.
        extents: logical, physical or UNWRITTEN, and length of each, one after another.
        unmapped: index of a file -> the reason why no extents are stored.
    """

    def __init__(self) -> None:
        self.paths = PathChecks()
        self.names = bytearray()
        self.name_sizes = array("q")
        self.numbers = {name: array("q") for name in _NUMBERS}
        self.extent_counts = array("q")
        self.extents = array("q")
        self.unmapped: dict[int, str] = {}
        self._reasons: dict[str, str] = {}  # so that each text is stored once

    def add(self, rows: Sequence[Any]) -> None:
        """Add one or more rows of JSON. After a MapFormatError the columns are useless."""
        try:
            names = self._add(rows)
        except MapFormatError as error:
            for row in rows if len(rows) > 1 else ():
                self.add([row])  # finds the bad one
            path = rows[0][0] if isinstance(rows[0], list) and rows[0] else None
            where = short_repr(path) if isinstance(path, str) else f"file {len(self.name_sizes)}"
            raise MapFormatError(f"{where}: {error}") from None
        self.paths.add(names)

    def _add(self, rows: Sequence[Any]) -> list[bytes]:
        if set(map(type, rows)) != {list} or set(map(len, rows)) != {len(COLUMNS)}:
            raise MapFormatError(f"must be [{', '.join(COLUMNS)}], not {short_repr(rows[0])}")
        paths, *numbers, extents = zip(*rows, strict=True)
        names = to_bytes(paths)
        if names is None:
            raise MapFormatError(f"not a path: {short_repr(paths[0])}")
        for name, values in zip(_NUMBERS, numbers, strict=True):
            self.numbers[name].extend(_integers(name, values))
        self._add_extents(extents)
        self.names += b"".join(names)
        self.name_sizes.extend(map(len, names))
        return names

    def _add_extents(self, column: Sequence[Any]) -> None:
        kinds = set(map(type, column))
        if not kinds <= {list, str}:
            raise MapFormatError(
                f"extents must be a list, or the reason as a string, not {short_repr(column[0])}"
            )
        if str in kinds:
            column = self._without_reasons(column)
        extents = list(chain.from_iterable(column))
        if extents:
            self.extents.extend(_extent_numbers(extents))
        self.extent_counts.extend(map(len, column))

    def _without_reasons(self, column: Sequence[Any]) -> list[Any]:
        """Note the reasons of unmapped files, and replace each by an empty list of extents."""
        reasons = {
            file: reason
            for file, reason in enumerate(column, len(self.name_sizes))
            if isinstance(reason, str)
        }
        if to_bytes(reasons.values()) is None:
            raise MapFormatError(f"not a valid string: {short_repr(column[0])}")
        for file, reason in reasons.items():
            self.unmapped[file] = self._reasons.setdefault(reason, reason)
        return [() if isinstance(extents, str) else extents for extents in column]


def as_array(numbers: array[int]) -> IntArray:
    """View `numbers` as an array of the same memory; afterwards `numbers` cannot grow."""
    return np.frombuffer(numbers, np.int64)


def _integers(name: str, values: Sequence[Any]) -> array[int]:
    if set(map(type, values)) == {int}:  # array() would accept a bool
        with suppress(OverflowError):
            return array("q", values)
    raise MapFormatError(f"{name} must be an integer of 64 bits, not {short_repr(values[0])}")


def _extent_numbers(extents: list[Any]) -> array[int]:
    """Flatten extents to logical, physical and length of each, one after another."""
    if set(map(type, extents)) != {list} or set(map(len, extents)) != {3}:
        raise MapFormatError("each extent must be [logical, physical, length]")
    numbers = list(chain.from_iterable(extents))
    physical = numbers[1::3]
    if UNWRITTEN in physical:
        raise MapFormatError(
            f"the extents {short_repr(extents)} have a negative address; null means unwritten"
        )
    if None in physical:
        numbers[1::3] = [UNWRITTEN if address is None else address for address in physical]
    return _integers("logical, physical and length", numbers)


def lines(extent_map: ExtentMap) -> Iterator[str]:
    """Format the rows of a map as JSON, one per file, in ASCII."""
    for start in range(0, len(extent_map), _FILES_PER_GROUP):
        files = slice(start, start + _FILES_PER_GROUP)
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
    """Begin the checks of a map's names, still to be finished."""
    checks = PathChecks()
    for start in range(0, len(extent_map), _FILES_PER_GROUP):
        checks.add(_names(extent_map, slice(start, start + _FILES_PER_GROUP)))
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
