"""`Loader`, a data loader of DLIO, the engine of MLPerf Storage, which imports it by its name.

`loader` reads by `readers.batches`: a reader is opened for each epoch, and closed at its end by the
thread that takes its batches. Imports readers/ and contract/.
"""

from ..contract.errors import BackendUnavailable
from ..contract.families import FAMILIES

try:
    from .loader import DlioLoader as Loader
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package in ("", "dali_storage", "nvidia"):
        raise
    remedy = FAMILIES["dlio"].install
    if package == "dlio_benchmark":
        remedy = "pip install --no-deps dlio-benchmark==2.0.0"  # it requires DALI for CUDA 11
    raise BackendUnavailable(f"dali_storage.dlio needs the package {package}", remedy) from None

__all__ = ["Loader"]
