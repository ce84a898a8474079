"""The readers in DALI's dynamic mode (nvidia.dali.experimental.dynamic).

Begin with `reader`, the base class of the classes in `readers`; `reading_operator` takes the place
of DALI's operator. A reader opens at its first batch, and is closed by `close()`, by `with` or when
it is dropped. Imports dali/, readers/, reading/, saving/, order/resuming/ and contract/.
"""

from ..dali import compat

compat.require_dynamic()
