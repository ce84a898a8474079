"""The order of the samples: pure arithmetic, without I/O and without DALI.

Read `sequence` first, then `ordering` (the slot), `options`, `shards`, `streams` and `libstdcxx`;
`epochs` and `permutation` are for families. Nothing to close. Imports contract/ only.
"""

from .options import OrderOptions
from .sequence import Order, reader_meta

__all__ = ["Order", "OrderOptions", "reader_meta"]
