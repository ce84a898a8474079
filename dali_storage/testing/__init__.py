"""Tests that every backend must pass.

Subclass `ReaderTests`, open a reader, run pytest:

    class TestMyReader(ReaderTests):
        def open(self, catalog: Catalog) -> Reader:
            return MyReader(catalog)

`SnapshotReaderTests` is for readers that keep the bytes they were opened with, `MappedReaderTests`
for those that refuse files that have changed since they were mapped. The tests generate the
expected bytes and write them without the code under test.
"""

from .contract import SIZES, ReaderTests, SnapshotReaderTests, make_batch, make_known_batch, read
from .mapped import MappedReaderTests
from .probes import nothing_is_left

__all__ = [
    "SIZES",
    "MappedReaderTests",
    "ReaderTests",
    "SnapshotReaderTests",
    "make_batch",
    "make_known_batch",
    "nothing_is_left",
    "read",
]
