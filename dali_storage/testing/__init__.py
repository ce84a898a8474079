"""Tests for every backend.

Subclass `ReaderTests`, open a reader, run pytest:

    class TestMyReader(ReaderTests):
        def open(self, catalog: Catalog) -> Reader:
            return MyReader(catalog)

A reader of ranges also inherits from `RangeTests` or `SnapshotRangeTests`: the same tests then run
on ranges of containers, too. `SnapshotReaderTests` is for readers with the bytes of the moment of
opening, `MappedReaderTests` for readers with an extent map, which refuse changed files, and
`ObjectTests` for readers of objects. The tests generate the expected bytes and write them without
the code under test; each closes its readers. Begin with `contract`; `ranges`, `mapped` and
`objects` add promises, `packing` and `reading` make test samples and batches, `probes` look for
leaks.
"""

from .contract import ReaderTests, SnapshotReaderTests, only
from .mapped import MappedReaderTests
from .objects import ObjectTests
from .packing import SIZES
from .probes import require_no_leak
from .ranges import RangeTests, SnapshotRangeTests
from .reading import fill, make_batch, make_known_batch, read

__all__ = [
    "SIZES",
    "MappedReaderTests",
    "ObjectTests",
    "RangeTests",
    "ReaderTests",
    "SnapshotRangeTests",
    "SnapshotReaderTests",
    "fill",
    "make_batch",
    "make_known_batch",
    "only",
    "read",
    "require_no_leak",
]
