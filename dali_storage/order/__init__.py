"""The order of the samples: pure arithmetic, without I/O and without DALI.

`Order` yields the batches, `OrderOptions` are the arguments that determine them, `reader_meta()` is
the answer of DALI's method of that name. The other modules are private to the package, except
`libstdcxx`, which also generates DALI's seeds.
"""

from .options import OrderOptions
from .sequence import Order, reader_meta

__all__ = ["Order", "OrderOptions", "reader_meta"]
