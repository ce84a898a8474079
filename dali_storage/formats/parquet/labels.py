"""The labels of Parquet files, which pyarrow reads: numbers, or names of classes."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...contract._types import IntArray
from .footer import AGAIN, Footer, Read, chunks_of

Names: TypeAlias = tuple[str, ...]


class Labels(NamedTuple):
    """The labels of a file.

    Attributes:
        numbers: int64[rows].
        texts: of labels that are text, those that `numbers` are indices into; None: of numbers.
        names: the names of the classes in the schema, by their numbers; None: unknown.
    """

    numbers: IntArray
    texts: Names | None
    names: Names | None


class _Chunks(io.RawIOBase):
    """A file of which some parts are known, by their places."""

    def __init__(self, parts: Mapping[int, bytes], nbytes: int) -> None:
        self._parts, self._nbytes, self._at = parts, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        self._at = to + (0, self._at, self._nbytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        return self._parts[self._at][:size]


def read_labels(read: Read, footer: Footer, column: str) -> Labels:
    """Read the labels of a file.

    Raises:
        ValueError: there is no such column, it is damaged, or it has nulls or values that are not
            labels.
    """
    leaves = footer.leaves
    if column not in leaves:
        what = f"there is no column {column!r} for labels; there are {', '.join(map(repr, leaves))}"
        raise ValueError(f"{what}: give one of them as label, or label=None")
    chunks = chunks_of(footer, leaves.index(column))
    places = [(it.start, it.end - it.start) for it in chunks]
    parts = dict(zip([at for at, _ in places], read(places), strict=True))
    try:
        source = pa.PythonFile(_Chunks(parts, footer.nbytes), mode="r")
        file = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False)
        groups = [number for number, it in enumerate(footer.groups) if it.get(3)]
        read_them = file.read_row_groups(groups, columns=[column], use_threads=False)
        found = read_them[column].combine_chunks()
    except (LookupError, OSError, pa.ArrowException) as error:
        raise ValueError(f"pyarrow cannot read the labels in {column!r}: {error}") from None
    if len(found) != sum(it.rows for it in chunks):
        raise ValueError(f"there are {len(found):,} labels in {column!r}, more or fewer than rows")
    if found.null_count:
        row = int(np.flatnonzero(found.is_null().to_numpy(zero_copy_only=False))[0])
        raise ValueError(f"row {row} has no label in {column!r}; write one, or give label=None")
    names = footer.features.get(column)
    names = names.get("names") if isinstance(names, dict) else None
    known = tuple(map(str, names)) if isinstance(names, list) else None
    numbers, texts = _values(found, column)
    if known is not None and texts is None:  # -1 is "no label"
        for row in np.flatnonzero((numbers < -1) | (numbers >= len(known)))[:1].tolist():
            what = (
                f"row {row} has the label {numbers[row]}, but {column!r} has {len(known)} classes"
            )
            raise ValueError(f"{what}: {AGAIN}")
    return Labels(numbers, texts, known)


def _values(found: Any, column: str) -> tuple[IntArray, Names | None]:
    """Return numbers, and the texts that these are indices into; or None."""
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    if pa.types.is_boolean(found.type):
        found = found.cast(pa.uint8())
    if pa.types.is_integer(found.type):
        numbers = found.to_numpy(zero_copy_only=False)
        for row in np.flatnonzero((numbers < -(2**31)) | (numbers >= 2**31))[:1].tolist():
            raise ValueError(f"row {row} has the label {numbers[row]}, which is not an int32")
        return numbers.astype(np.int64), None
    if not any(it(found.type) for it in (pa.types.is_string, pa.types.is_large_string, _is_view)):
        raise ValueError(f"the labels in {column!r} are {found.type}, not integers or text")
    texts = found.cast(pa.large_string()).dictionary_encode()
    numbers = texts.indices.to_numpy(zero_copy_only=False)
    return numbers.astype(np.int64), tuple(texts.dictionary.to_pylist())


def _is_view(kind: Any) -> bool:
    return bool(kind == pa.string_view())


def numbered(
    paths: Sequence[bytes], files: Sequence[Labels], classes: Sequence[str] | None
) -> tuple[list[NDArray[np.int32]], Names | None]:
    """Number the classes of all files; `classes`: their names in the wanted order.

    Without `classes`, names are numbered as in the schema; text by code points, over all files.

    Returns:
        The labels of each file, and the names of the classes; None: labels are numbers only.

    Raises:
        ValueError: files name their classes differently, a label is not in `classes`, or labels
            have no names.
    """
    first = files[0]
    for path, it in zip(paths, files, strict=True):
        if (it.texts is None, it.names) != (first.texts is None, first.names):
            what = f"{os.fsdecode(path)!r} has other classes than {os.fsdecode(paths[0])!r}"
            both = f"{_shown(it)} and {_shown(first)}"
            raise ValueError(f"{what}: {both}; give files of one data set")
    names = first.names
    if first.texts is not None:
        names = tuple(sorted({text for it in files for text in it.texts or ()}))
    if classes is None:
        wanted = names
    elif names is None:
        raise ValueError("classes is for labels with names, but the labels are numbers")
    else:
        wanted = tuple(classes)
    if wanted is None or (first.texts is None and wanted == names):
        return [it.numbers.astype(np.int32) for it in files], names
    places = {name: number for number, name in enumerate(wanted)}
    found = []
    for path, it in zip(paths, files, strict=True):
        table = [places.get(name, -2) for name in it.texts or it.names or ()]
        numbers = np.array([*table, -1])[it.numbers]  # -1 means "no label", and stays
        for row in np.flatnonzero(numbers == -2)[:1].tolist():
            name = (it.texts or it.names or ())[it.numbers[row]]
            raise ValueError(
                f"{os.fsdecode(path)!r}: row {row} has the label {name!r}: not in classes"
            )
        found.append(numbers.astype(np.int32))
    return found, wanted


def _shown(labels: Labels) -> str:
    return "text" if labels.texts is not None else f"{labels.names or 'numbers'!r:.200}"
