"""The readers in DALI's dynamic mode (nvidia.dali.experimental.dynamic)."""

from ..dali import compat

compat.require_dynamic()
