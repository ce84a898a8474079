"""Samples of several files, or of several ranges."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format, Output
from ..contract.views import Contents, Views

BYTES = np.dtype(np.uint8)


class Pieces(Format):
    """An output for each piece of a sample, and the label, if samples have one."""

    def __init__(
        self, operator: str, schema: str, dtypes: Sequence[np.dtype[Any]], *, labels: bool = False
    ) -> None:
        """`dtypes`: the type of each piece, whose size is a multiple of the type's."""
        self.operator, self.schema, self.labels, self._dtypes = operator, schema, labels, dtypes
        self.outputs = [Output(dtype) for dtype in dtypes]
        self.named = range(0 if operator == "sequence" else len(dtypes))  # as in DALI

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the pieces; small pieces of one size become one array; see `Format`."""
        each = [views.every(catalog.pieces, number) for number in range(catalog.pieces)]
        return [typed(it.contents(), dtype) for it, dtype in zip(each, self._dtypes, strict=True)]


def typed(contents: Contents, dtype: np.dtype[Any]) -> Contents:
    """Return bytes as values of a type, without a copy."""
    if isinstance(contents, np.ndarray):
        return contents.view(dtype)
    items: Sequence[Any] = contents
    return items if dtype == np.uint8 else [np.frombuffer(item, dtype) for item in items]
