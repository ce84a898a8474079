"""Ctrl-C during reads by xnvme-block: nothing is written to the buffer after it."""

from __future__ import annotations

import numpy as np
import pytest

from dali_storage.testing import read

from . import ways
from .hostile import Layout
from .promises import require_nothing_is_written_after_ctrl_c


@pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked")
@ways.ALL
def test_nothing_is_written_after_ctrl_c(layouts: list[Layout], way: ways.Way) -> None:
    layout = layouts[0]
    with way(layout.serial) as uri, layout.open(uri) as reader:
        require_nothing_is_written_after_ctrl_c(reader, len(layout.contents))
        assert read(reader, np.arange(len(layout.contents))) == layout.contents
