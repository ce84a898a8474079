"""Manifests: text files with a JSON object on each line, as in NeMo [1].

DALI's rules for a line are in its loader/nemo_asr_loader.cc, which parses with RapidJSON.

[1] https://docs.nvidia.com/nemo-framework/user-guide/latest/nemotoolkit/asr/datasets.html
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import join_path
from ...contract.errors import ManifestLinesSkipped
from ...contract.views import Contents, Views, copied
from .. import numbers
from ..files import LOCAL, Files

Kind: TypeAlias = type[str] | type[int] | type[float]
"""The type of a column: UTF-8 as uint8 (n,), int64 (1,) or float64 (1,)."""

_FIELDS: list[tuple[str, type]] = [(name, int) for name in ("manifest", "line", "number", "file")]
_FIELDS += [(name, float) for name in ("offset", "duration")]
_NAMES = {str: "text", int: "an integer of 64 bits", float: "a number"}
_LISTED = 5  # line numbers in a warning
_LONE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, eq=False)
class Manifest:
    """The n samples of some manifests, in the order of their lines.

    Attributes:
        paths: the paths of the manifests.
        names: the paths or URLs of files, each once.
        rows: n records: "manifest", an index into `paths`; "line", from 1 on; "number" of the
            sample in its manifest; "file", an index into `names`; "offset", in seconds, at least 0;
            and "duration", in seconds, negative if there is none.
        columns: for each wanted key: n numbers, or n parts of UTF-8.
    """

    paths: Sequence[bytes]
    names: list[bytes]
    rows: NDArray[np.void]
    columns: list[NDArray[Any] | Views]

    def where(self, sample: int) -> str:
        """Return the line of a sample, for messages."""
        manifest, line, *_ = self.rows[sample]
        return f"{os.fsdecode(self.paths[manifest])!r}, line {line}"

    def values(self, samples: IntArray) -> list[Contents]:
        """Return the columns of some samples, in new memory."""
        return [
            copied(Views(it.buffer, it.offsets[samples], it.sizes[samples]).contents())
            if isinstance(it, Views)
            else it[samples][:, None]
            for it in self.columns
        ]

    def checksum(self, start: int) -> int:
        """Return a CRC-32 of all samples, continued from another one."""
        for it in (self.rows, *self.columns):
            for part in (it.buffer, it.sizes) if isinstance(it, Views) else (it,):
                start = zlib.crc32(np.ascontiguousarray(part).data.cast("B"), start)
        return start


def read(
    paths: Sequence[bytes],
    key: str,
    columns: Mapping[str, Kind],
    *,
    root: bytes = b"",
    segments: bool = True,
    dali: tuple[float, float] | None = None,
    files: Files = LOCAL,
) -> Manifest:
    """Read the samples of manifests.

    Args:
        paths: paths, or URLs of objects.
        key: the key of the path or URL of a sample's file.
        columns: the wanted keys, and the kinds of their values.
        root: the base of relative paths.
        segments: whether "offset" and "duration" select a part of the file.
        dali: follow DALI: skip lines without a path; round numbers as RapidJSON; end text at a NUL,
            with missing text as empty; ignore text after an object. The two numbers are the
            shortest and the longest duration of a sample in seconds; 0: no limit.
        files: reads the manifests.

    Raises:
        ValueError: a line is not a JSON object, or has a wrong value; or there is no sample. The
            message has the manifest and the line.
        OSError: a manifest cannot be read; names the manifest.
    """
    parser = _Parser(key, columns, segments, dali)
    kinds = [*enumerate(columns.values())]
    fields = [(f"column {number}", int if kind is str else kind) for number, kind in kinds]
    table = np.fromiter(parser.rows(paths, files), [*_FIELDS, *fields])
    if not table.size:
        shown = f"{os.fsdecode(paths[0])!r}" + ", ..." * (len(paths) > 1)
        is_limited = dali is not None and any(limit > 0 for limit in dali)
        why = " and a duration between min_duration and max_duration" * is_limited
        what = f"no line of {shown} is a JSON object with {key!r}{why}"
        raise ValueError(f"{what}; write one for each sample")
    found: list[NDArray[Any] | Views] = [table[name] for name, _ in fields]
    for number, text in parser.texts.items():
        sizes = table[f"column {number}"]
        ends = np.cumsum(sizes)
        found[number] = Views(np.asarray(text, np.uint8), ends - sizes, sizes)
    return Manifest(paths, [join_path(root, name) for name in parser.names], table, found)


def first_path(manifest: bytes, key: str) -> list[bytes]:
    """Return the path or URL in the first line of a local manifest; nothing if the line is bad.

    A pipe is not read, as reading works only once.
    """
    failures = OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError
    if os.path.isfile(path := os.fsdecode(manifest)):
        with suppress(*failures), open(path, "rb") as file:
            name = json.loads(next(filter(bytes.strip, file)))[key]
            return [str.encode(name, "utf-8", "surrogateescape")]
    return []


class _Parser:
    """Makes rows of lines, and collects names and texts; see `read()` for the arguments."""

    def __init__(
        self,
        key: str,
        columns: Mapping[str, Kind],
        segments: bool,
        dali: tuple[float, float] | None,
    ) -> None:
        self.names = dict[bytes, int]()
        self.texts = {n: bytearray() for n, kind in enumerate(columns.values()) if kind is str}
        self._key, self._columns, self._segments, self._dali = key, columns, segments, dali
        self._decoder = json.JSONDecoder(
            parse_float=_any_length(numbers.parser()) if dali else float,
            parse_int=_any_length(int),
            parse_constant=float,  # NaN or Infinity, refused only for wanted keys
        )

    def rows(self, paths: Sequence[bytes], files: Files) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of manifests."""
        with files.opened(paths) as opened:
            for manifest, file in enumerate(opened):
                number, skipped = 0, list[int]()
                for line, raw in enumerate(file, 1):
                    data = raw.partition(b"\0")[0] if self._dali else raw
                    text = data.decode("utf-8", "surrogateescape").strip(" \t\r\n")
                    try:
                        row = self._row(text) if text else []
                    except (ValueError, RecursionError) as error:
                        where = f"{os.fsdecode(paths[manifest])!r}, line {line}"
                        raise ValueError(f"{where}: {_reason(error)}") from None
                    if row:
                        yield (manifest, line, number, *row)
                        number += 1
                    elif row is None:
                        skipped.append(line)
                _warn(paths[manifest], self._key, skipped)

    def _row(self, text: str) -> list[Any] | None:
        """Parse the fields from "file"; None to skip a line with a warning, empty to leave out."""
        found: Any = {}
        end, dali = 0, self._dali
        if not dali and text[0] == "\ufeff":
            raise ValueError("it has a byte order mark; save the file as UTF-8 without one")
        if not dali or text[0] == "{":
            found, end = self._decoder.raw_decode(text)
        if not dali and (text[end:] or not isinstance(found, dict)):
            raise ValueError("it is not one JSON object; write one object on each line")
        if not (name := self._text(text, found, self._key)):
            if dali:
                return None
            raise ValueError(f"{self._key!r} must not be empty")
        offset = _value(found, "offset", float, 0.0) if self._segments else 0.0
        duration = _value(found, "duration", float, -1.0) if self._segments else -1.0
        values = [
            self._text(text, found, key) if kind is str else _value(found, key, kind)
            for key, kind in self._columns.items()
        ]
        if dali and (0 < dali[1] < duration or duration < dali[0] > 0):
            return []
        for column, collected in self.texts.items():
            collected += values[column]
            values[column] = len(values[column])
        return [self.names.setdefault(name, len(self.names)), max(offset, 0.0), duration, *values]

    def _text(self, line: str, found: dict[str, Any], key: str) -> bytes:
        """Return text as UTF-8; invalid bytes of the line stay unchanged."""
        value = str(_value(found, key, str, "" if self._dali else None))
        if self._dali:
            value = value.partition("\0")[0]
        if not value.isascii() and _LONE.search(value):
            # From an invalid byte, or from an escape? With invalid bytes replaced, only the latter.
            valid = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            if _LONE.search(self._decoder.raw_decode(valid)[0][key]):
                raise ValueError(f"{key!r} has half of a surrogate pair; write UTF-8")
        return value.encode("utf-8", "surrogateescape")


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        what = f"{error.msg} (column {error.colno})"
    elif isinstance(error, RecursionError):
        what = "lists or objects are nested too deep"
    else:
        return str(error)
    return f"not a JSON object: {what}; write one object on each line"


def _warn(path: bytes, key: str, skipped: list[int]) -> None:
    if skipped:
        some = ", ".join(map(str, skipped[:_LISTED])) + ", ..." * (len(skipped) > _LISTED)
        count = f"{len(skipped)} lines are" if len(skipped) > 1 else "1 line is"
        what = f"{count} skipped, without a JSON object with {key!r}: {some}"
        warnings.warn(f"{os.fsdecode(path)!r}: {what}", ManifestLinesSkipped, stacklevel=2)


def _value(found: dict[str, Any], key: str, kind: Kind, missing: Any = None) -> Any:
    value = found.get(key, missing)
    known = isinstance(value, (int, float) if kind is float else kind)
    if known and kind is int:
        known = -(1 << 63) <= value < 1 << 63
    elif known and kind is float:
        known = -sys.float_info.max <= value <= sys.float_info.max  # neither NaN nor a long integer
    if not known or isinstance(value, bool):
        what = f"not {json.dumps(value):.50}" if key in found else "but is missing in the line"
        raise ValueError(f"{key!r} must be {_NAMES[kind]}, {what}")
    return kind(value)


def _any_length(parse: Callable[[str], float]) -> Callable[[str], float]:
    """Wrap `parse`: infinity if Python refuses so many digits, as the key may be unwanted."""

    def number(text: str) -> float:
        try:
            return parse(text)
        except (ValueError, OverflowError):
            return math.inf

    return number
