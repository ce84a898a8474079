"""The order of the samples: pure arithmetic, without I/O and without DALI.

`Order` gives the batches, `OrderOptions` are the arguments that determine them, and `reader_meta()`
is what DALI tells an iterator about them. The rest of the package is not for use from outside, but
for `libstdcxx`, from which DALI's seeds are made.
"""

from .options import OrderOptions
from .sequence import Order, reader_meta

__all__ = ["Order", "OrderOptions", "reader_meta"]
