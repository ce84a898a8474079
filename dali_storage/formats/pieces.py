"""Samples of several files, or of several ranges."""

from collections.abc import Sequence

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format, Output
from ..contract.views import Contents, Views


class Pieces(Format):
    """An output with the bytes of each piece of a sample, and the label, if samples have one."""

    def __init__(self, operator: str, schema: str, count: int, *, labels: bool = False) -> None:
        """`count`: the number of pieces."""
        self.operator, self.schema, self.labels = operator, schema, labels
        self.outputs = [Output()] * count
        self.named = range(count if operator == "columns" else 0)  # sequences as in DALI

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the pieces; small pieces of one size become one array; see `Format`."""
        count = catalog.pieces
        return [views.every(count, number).contents() for number in range(count)]
