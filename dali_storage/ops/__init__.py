"""The readers as classes, for pipelines written with `nvidia.dali.ops`; see also `patch`."""

from ..dali import compat  # first: without DALI, its error says how to install DALI
from . import readers
from .swapping import swapped

__all__ = ["readers", "swapped"]

compat.require(__name__, compat.OLDEST)
