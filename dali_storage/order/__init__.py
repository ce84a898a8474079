"""In which order the samples come: pure arithmetic, no I/O, nothing of DALI."""

from .options import OrderOptions
from .sequence import Order, reader_meta

__all__ = ["Order", "OrderOptions", "reader_meta"]
