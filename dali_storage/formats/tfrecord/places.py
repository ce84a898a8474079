"""Remembers the places of features, to parse a record once and not in every epoch."""

from collections.abc import Collection, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.views import Views
from . import example
from .record import FOOTER, OVERHEAD, Feature

_MOST = 64  # bytes of memory a record

Column: TypeAlias = Any
"""A feature of n records: its output; for a string int64[n, 2], start and size in the record."""


class Places:
    """The known features of a catalog's records: 8 bytes a string, at most 8 a number.

    The containers of a catalog do not change, or reading them fails. Nevertheless the checksum of a
    whole record is compared with the checksum of the parsed record.

    Attributes:
        has_unwanted: whether much of the records may belong to other features.
    """

    def __init__(self, catalog: Catalog, features: Collection[Feature]) -> None:
        """Begin without known features. Only small features of a fixed size are remembered."""
        shapes = [(2,) if it.kind == example.BYTES else it.shape for it in features]
        dtypes = [np.dtype(np.uint32) if it.kind == example.BYTES else it.dtype for it in features]
        each = [*zip(shapes, dtypes, strict=True)]
        self._columns: list[NDArray[Any]] | None = None
        self.has_unwanted = any(it.kind == example.BYTES for it in features)
        nbytes = sum(prod(shape) * dtype.itemsize for shape, dtype in each)
        if all(it.fixed for it in features) and nbytes <= _MOST:
            count = catalog.delivered
            self._columns = [np.zeros((count, *shape), dtype) for shape, dtype in each]
            self._checksums = np.zeros(count, np.uint32)
            self._known = np.zeros(count, np.bool_)

    def recall(self, records: IntArray, views: Views) -> list[Column] | None:
        """Return the features of `records`, which are at `views`; None unless all are known."""
        found = self.known(records)
        if found is not None and (self._checksums[records] != _checksums(views)).any():
            self._columns = found = None  # the containers change, and should not
        return found

    def known(self, records: IntArray) -> list[Column] | None:
        """Return the parsed features of `records`; None unless all are known."""
        columns = self._columns
        if columns is None or not self._known[records].all():
            return None
        found = [column[records] for column in columns]
        return [it.astype(np.int64) if it.dtype == np.uint32 else it for it in found]

    def remember(self, records: IntArray, views: Views, found: Sequence[Column]) -> None:
        """Remember the features of parsed records."""
        columns = self._columns
        if columns is None or int(views.sizes.max()) >= 1 << 32:
            return
        lengths = views.gather(8).view("<u8")[:, 0]
        shapes = [(records.size, *column.shape[1:]) for column in columns]
        if (lengths + OVERHEAD != views.sizes).any() or [it.shape for it in found] != shapes:
            return  # a checksum is elsewhere; or no record of the batch has one of the features
        for column, values in zip(columns, found, strict=True):
            column[records] = values
        self._checksums[records] = _checksums(views)
        self._known[records] = True  # the last, because other lanes look at it


def _checksums(views: Views) -> NDArray[np.uint32]:
    footers = Views(views.buffer, views.offsets + views.sizes - FOOTER.size, views.sizes)
    return footers.gather(FOOTER.size).view("<u4")[:, 0]
