"""The labels of Parquet files, which pyarrow reads: numbers, or names of classes."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ...contract._types import IntArray
from .footer import Footer, Read, chunks_of

Names: TypeAlias = tuple[str, ...]


class Labels(NamedTuple):
    """The labels of a file.

    Attributes:
        numbers: int64[rows].
        names: the names of classes by `numbers`: texts of this file, or those of the schema; None:
            there are only numbers.
        is_text: whether the labels are text, whose numbers mean nothing in other files.
    """

    numbers: IntArray
    names: Names | None
    is_text: bool


class _Chunks(io.BytesIO):
    """A file of which some parts are known, by their places."""

    def __init__(self, parts: Mapping[int, bytes], nbytes: int) -> None:
        super().__init__()
        self._parts, self._nbytes, self._at = parts, nbytes, 0

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        self._at = to + (0, self._at, self._nbytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
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
    groups = [number for number, it in enumerate(footer.groups) if it.get(3)]  # others lack pages
    try:
        source = pa.PythonFile(_Chunks(parts, footer.nbytes), mode="r")
        file = pq.ParquetFile(source, metadata=footer.metadata, pre_buffer=False)
        table = file.read_row_groups(groups, columns=[column], use_threads=False)
        found = table[column].combine_chunks()
    except (LookupError, OSError, pa.ArrowException) as error:
        raise ValueError(f"pyarrow cannot read the labels in {column!r}: {error}") from None
    if len(found) != sum(it.rows for it in chunks):
        raise ValueError(f"there are {len(found):,} labels in {column!r}, more or fewer than rows")
    if found.null_count:
        row = found.is_null().index(True)
        raise ValueError(f"row {row} has no label in {column!r}; write one, or give label=None")
    numbers, names = _values(found, column)
    if names is not None:
        return Labels(numbers, names, is_text=True)
    names = _classes(footer, column)
    least, most = (-(2**31), 2**31 - 1) if names is None else (-1, len(names) - 1)  # -1: no label
    for row in np.flatnonzero((numbers < least) | (numbers > most))[:1].tolist():
        what = f"row {row} has the label {numbers[row]} in {column!r}"
        raise ValueError(f"{what}, which must be from {least} to {most}")
    return Labels(numbers.astype(np.int64), names, is_text=False)


def _values(found: Any, column: str) -> tuple[NDArray[Any], Names | None]:
    """Return numbers, and the texts that these are indices into; or None."""
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    if pa.types.is_boolean(found.type):
        found = found.cast(pa.uint8())
    if pa.types.is_integer(found.type):
        return np.from_dlpack(found), None  # to_numpy() imports pandas, which takes seconds
    if found.type not in (pa.string(), pa.large_string(), pa.string_view()):
        raise ValueError(f"the labels in {column!r} are {found.type}, not integers or text")
    texts = found.cast(pa.large_string()).dictionary_encode()
    return np.from_dlpack(texts.indices), tuple(texts.dictionary.to_pylist())


def _classes(footer: Footer, column: str) -> Names | None:
    """Return the names that the package datasets has written into the schema."""
    try:
        about = json.loads(footer.metadata.metadata[b"huggingface"])
        return tuple(map(str, about["info"]["features"][column]["names"]))
    except (LookupError, RecursionError, TypeError, ValueError):
        return None


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
    is_text, names = files[0].is_text, files[0].names
    for path, it in zip(paths, files, strict=True):
        if it.is_text != is_text or not (is_text or it.names == names):
            shown = [str(each.names or "numbers")[:200] for each in (it, files[0])]
            what = f"{os.fsdecode(path)!r} has other classes than {os.fsdecode(paths[0])!r}"
            raise ValueError(f"{what}: {shown[0]} and {shown[1]}; give files of one data set")
    if classes is not None and names is None:
        raise ValueError("classes is for labels with names, but the labels are numbers")
    if is_text:
        names = tuple(sorted({*chain.from_iterable(it.names or () for it in files)}))
    names = names if classes is None else tuple(classes)
    places, found = {name: number for number, name in enumerate(names or ())}, []
    for path, it in zip(paths, files, strict=True):
        numbers, known = it.numbers, it.names or ()
        if it.names != names:
            table = [places.get(name, -2) for name in known]
            numbers = np.array([*table, -1])[numbers]  # -1 stays
        for row in np.flatnonzero(numbers == -2)[:1].tolist() if known else ():
            what = f"row {row} has the label {known[it.numbers[row]]!r}, which is not in classes"
            raise ValueError(f"{os.fsdecode(path)!r}: {what}")
        found.append(numbers.astype(np.int32))
    return found, names
