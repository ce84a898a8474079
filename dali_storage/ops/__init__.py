"""The readers as classes, for pipelines written with `nvidia.dali.ops`; see also `patch`.

`readers` makes a class of each function of `dali_storage.readers` when it is first used; `swapping`
puts them in the place of DALI's. Knows `readers` and DALI's names, and opens nothing itself.
"""

from typing import TYPE_CHECKING

from ..contract.faces import hold_names

if TYPE_CHECKING:
    from . import readers
    from .swapping import swapped

__all__ = ["readers", "swapped"]

hold_names(__name__, {".readers": "readers", ".swapping": "swapped"})
