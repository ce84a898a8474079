"""A controller goes back to the kernel while its reader's memory is still there."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from dali_storage.errors import BackendUnavailable

from .. import plan
from . import ways
from .xnvme_namespaces import filled

pytestmark = [
    ways.ONLY_MAIN,
    pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked"),
]


def test_it_is_touched_no_more(tmp_path: Path) -> None:
    layout = filled(tmp_path / "mnt", plan.SEPARATE)
    with ways.address(plan.SEPARATE) as function:
        with layout.open(function) as reader:
            memory = reader.allocate(1 << 20)
        del reader
    assert layout.is_read_right(layout.disk)
    for _ in range(2):
        with ways.address(plan.SEPARATE) as function:
            with pytest.raises(BackendUnavailable, match=f"{function} .* took it over; restart"):
                layout.open(function)
            memory = None  # which does not make libxnvme forget it
            gc.collect()
    assert memory is None
    assert layout.is_read_right(layout.disk)
