"""The order of the samples: pure arithmetic, without I/O and without DALI."""

from .options import OrderOptions
from .sequence import Order, reader_meta

__all__ = ["Order", "OrderOptions", "reader_meta"]
