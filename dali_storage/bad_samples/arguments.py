"""The arguments about bad samples."""

import os
from collections.abc import Mapping
from typing import Any

from ..contract.options import dali_flag, dali_integer
from ..samples.locations import local_path
from .replacement import OnError
from .structure import broken


def bad_sample_options(arguments: Mapping[str, Any], device: str) -> OnError:
    """Return the handling of bad samples; arguments may be missing. Raises as `prepare()`."""
    wish, most = arguments.get("on_error") or "raise", arguments.get("max_replaced")
    record = arguments.get("bad_samples")
    if wish not in ("raise", "replace"):
        what = "on_error must be 'raise', or 'replace' to deliver another sample for a bad one"
        raise ValueError(f"{what}, not {wish!r}")
    for name, value in (("max_replaced", most), ("bad_samples", record)):
        if value is not None and wish == "raise":
            raise ValueError(f"{name} needs on_error='replace'")
    most = None if most is None else dali_integer("max_replaced", most, bits=32)
    if most is not None and most < 0:
        raise ValueError(f"max_replaced must be at least 0, not {most}")
    check = dali_flag("check", arguments.get("check"))
    if check and device == "gpu":
        raise ValueError(
            "check=True needs batches in host memory; leave out check, or use device='cpu'"
        )
    path = None if record is None else os.fsdecode(local_path("bad_samples", record))
    return OnError(
        replace=wish == "replace",
        broken=broken if check else None,
        most=most,
        record="" if path is None else os.path.abspath(path),
    )
