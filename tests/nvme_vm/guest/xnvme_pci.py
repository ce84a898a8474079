"""The backend xnvme-block on NVMe controllers that it drives itself: by their PCI addresses."""

from __future__ import annotations

import pytest

from dali_storage.backends import _xnvme
from dali_storage.errors import BackendUnavailable

from . import ways
from .hostile import Layout

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked")


def test_hostile_layouts_by_the_pci_address(layout: Layout) -> None:
    with ways.address(layout.serial) as function:
        if _xnvme.load().version == "0.7.5":
            with pytest.raises(BackendUnavailable, match="cannot read from a PCI address"):
                layout.is_read_right(function)
        else:
            assert layout.is_read_right(function, queue_depth=16)
            assert layout.is_read_right(function, queue_depth=16, queues=1, spin=True)
