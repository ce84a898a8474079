"""Ctrl-C during reads by xnvme-block: nothing is written to the buffer after it."""

from __future__ import annotations

import os
import signal
import threading
import time

import numpy as np
import pytest

from dali_storage.testing import make_batch, read

from . import ways
from .hostile import Layout

TIMES = 8
GUARD = 0xA5


@pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked")
@ways.ALL
def test_nothing_is_written_after_ctrl_c(layouts: list[Layout], way: ways.Way) -> None:
    layout = layouts[0]
    with way(layout.serial) as uri, layout.open(uri) as reader:
        batch = make_batch(reader, np.arange(len(layout.contents)))
        for number in range(TIMES):
            press = threading.Timer(0.02 + 0.007 * number, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                press.start()
                while True:
                    reader.read(batch, 0)
            batch.buffer[:] = GUARD
            time.sleep(0.05)
            assert batch.buffer.tobytes() == bytes([GUARD]) * batch.buffer.nbytes
        del batch  # or the controller would stay open
        assert read(reader, np.arange(len(layout.contents))) == layout.contents
