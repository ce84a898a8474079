"""Outputs of the records of TFRecord files: features of a `tf.train.Example`."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import RecordError
from ...contract.format import Format, Output, Wanted
from ...contract.views import Contents, Views
from ..wire import MalformedError, arrays, numbers
from . import example
from .places import Column, Places
from .record import FOOTER, HEADER, OVERHEAD, Feature, masked

_Record: TypeAlias = tuple[memoryview, example.Field]
"""An Example, and its wanted features."""

_UNWANTED = 8
"""Other features are left out if at least an eighth of a batch's bytes belongs to them."""

Checksum: TypeAlias = Callable[[bytes], int]
"""Computes a CRC-32C."""


class TfRecord(Format):
    """Features of records. Strings are views of the batch, numbers are copied.

    A feature of numbers is 0-D if no record has one, as in DALI.
    """

    operator = "tfrecord"
    schema = "TFRecord"
    labels = False

    def __init__(self, features: Mapping[str, Feature], checksum: Checksum | None = None) -> None:
        """The outputs are `features`, by name. With a `checksum`, every record is verified."""
        self._features = {name.encode(): feature for name, feature in features.items()}
        self.named = range(len(features))
        self._is_string = [it.kind == example.BYTES for it in features.values()]
        self._checksum = checksum
        self._lacking: dict[bytes, bool] = {}  # for each feature, whether the first batch lacks it
        self.outputs = [
            Output(it.dtype, 1 if it.kind == example.BYTES else None) for it in features.values()
        ]

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return an output for each feature; numbers of one shape are one array."""
        if self._checksum is not None:
            columns = self._parse(catalog, delivered, views)
        else:
            places: Places | None = catalog.sidecar.get(self)
            if places is None:
                new = Places(catalog, self._features.values())
                places = catalog.sidecar.setdefault(self, new)
            known = places.recall(delivered, views)
            columns = self._parse(catalog, delivered, views) if known is None else known
            if known is None:
                places.remember(delivered, views, columns)
        return self._outputs(columns, views)

    def wanted(self, catalog: Catalog, delivered: IntArray) -> Wanted | None:
        """Return the parts from the first string to the last, if their places are known."""
        places: Places | None = catalog.sidecar.get(self)
        ranges = catalog.ranges
        if places is None or ranges is None or not places.has_unwanted:
            return None
        columns = places.known(delivered)
        if columns is None:
            return None
        strings = [it for it, string in zip(columns, self._is_string, strict=True) if string]
        starts = np.minimum.reduce([it[:, 0] for it in strings])
        sizes = np.maximum.reduce([it.sum(axis=1) for it in strings]) - starts
        whole = int(ranges.sizes[delivered].sum())
        if sizes.sum() > whole - whole // _UNWANTED:
            places.has_unwanted = False  # other batches will be like this one
            return None

        def decode(views: Views) -> Sequence[Contents]:
            return self._outputs(columns, views._replace(offsets=views.offsets - starts))

        return Wanted(starts, sizes, decode)

    def _outputs(self, columns: Sequence[Column], views: Views) -> Sequence[Contents]:
        """Return the outputs of records at the offsets of the views."""
        return [
            Views(views.buffer, views.offsets + it[:, 0], it[:, 1]).contents() if string else it
            for it, string in zip(columns, self._is_string, strict=True)
        ]

    def _parse(self, catalog: Catalog, delivered: IntArray, views: Views) -> list[Column]:
        records: list[_Record] = []
        items = views.slices()
        try:
            for item in items:
                message = self._message(item)
                records.append((message, example.find(message, self._features)))
            return [self._column(key, it, records) for key, it in self._features.items()]
        except _WrongError as error:
            slot, what = len(records) if error.slot is None else error.slot, str(error)
            if error.lacks:
                names = example.find(self._message(items[slot]), _Every())
                what += f"; it has {', '.join(repr(key.decode()) for key in names) or 'none'}"
        except MalformedError as error:
            slot, what = len(records), f"not a tf.train.Example: {error}; write the file again"
        sample = int(delivered[slot])
        raise RecordError(catalog.path(sample), f"{catalog.where(sample)}: {what}")

    def _message(self, record: memoryview) -> memoryview:
        """Return the Example in a record, after a comparison of checksums if requested."""
        ends = len(record) - FOOTER.size
        if ends < HEADER.size:
            raise _WrongError(f"a record has at least {OVERHEAD} bytes; rebuild the index")
        length, crc = HEADER.unpack_from(record)
        stop = HEADER.size + length
        if stop > ends:
            what = f"its header says {length:,} bytes of data"
            raise _WrongError(f"{what}; rebuild the index, or replace a damaged file")
        message = record[HEADER.size : stop]
        if self._checksum is not None:
            (footer,) = FOOTER.unpack_from(record, stop)
            for what, part, stored in ("length", record[:8], crc), ("data", message, footer):
                if stored != masked(self._checksum(bytes(part))):
                    raise _WrongError(f"the checksum of its {what} is wrong; write the file again")
        return message

    def _column(self, key: bytes, feature: Feature, records: list[_Record]) -> Column:
        found = [field.get(key) for _, field in records]
        if feature.kind == example.BYTES:
            bounds = np.array([_string(key, slot, it) for slot, it in enumerate(found)])
            return np.column_stack((bounds[:, 0] + HEADER.size, bounds[:, 1] - bounds[:, 0]))
        lacking = [it is None for it in found]
        if feature.shape or not feature.fixed:
            # DALI accepts one number of dimensions in a batch, and in all batches of a source.
            expected = self._lacking.setdefault(key, all(lacking))
            if (lacks := not expected) in lacking:
                has, have = ("no", "have one") if lacks else ("the", "do not")
                what = f"it has {has} feature {key.decode()!r}, but other records {have}"
                raise _WrongError(what, lacking.index(lacks), lacks)
        if all(lacking):
            return np.zeros(len(found), feature.dtype)
        # A list of another kind has no values.
        parts = [it[1] if it and it[0] == feature.kind else () for it in found]
        data = [
            b"".join([message[start:stop] for start, stop in some])
            for (message, _), some in zip(records, parts, strict=True)
        ]
        values, counts = numbers(data, floats=feature.kind == example.FLOATS)
        return (_fixed if feature.fixed else _variable)(key.decode(), feature.shape, values, counts)


class _WrongError(Exception):
    """A record lacks a wanted feature, or has a wrong one.

    Attributes:
        slot: the record's slot in the batch; None: the current one.
        lacks: whether the record has no feature of this name.
    """

    def __init__(self, what: str, slot: int | None = None, lacks: bool = False) -> None:
        super().__init__(what)
        self.slot, self.lacks = slot, lacks


class _Every:
    def __contains__(self, name: object) -> bool:
        return True


def _string(
    key: bytes, slot: int, found: tuple[int, list[tuple[int, int]]] | None
) -> tuple[int, int]:
    if found is None or found[0] != example.BYTES or not found[1]:
        what = "no feature" if found is None else "no string in the feature"
        raise _WrongError(f"it has {what} {key.decode()!r}", slot, lacks=found is None)
    return found[1][0]


def _fixed(
    name: str, shape: tuple[int, ...], values: NDArray[Any], counts: IntArray
) -> NDArray[Any]:
    size = prod(shape)
    for slot in np.flatnonzero(counts > size)[:1].tolist():
        what = f"the feature {name!r} has {counts[slot]:,} values, but its FixedLenFeature"
        raise _WrongError(f"{what} {size:,}; set the shape of the values there", slot)
    if not (counts == size).all():
        padded = np.zeros((counts.size, size), values.dtype)
        padded[np.arange(size) < counts[:, None]] = values
        values = padded
    return values.reshape(counts.size, *shape)


def _variable(
    name: str, shape: tuple[int, ...], values: NDArray[Any], counts: IntArray
) -> Contents:
    size = prod(shape)
    for slot in np.flatnonzero(counts % size)[:1].tolist():
        what = f"the feature {name!r} has {counts[slot]:,} values, not a multiple of the {size:,}"
        raise _WrongError(f"{what} of its partial_shape {list(shape)}", slot)
    return arrays(values, counts, shape)
