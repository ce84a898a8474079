"""A controller is taken out while it is read: by the host, when it sees the file `reading`."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from dali_storage.backends.block import BlockReader
from dali_storage.catalog import from_tree
from dali_storage.testing import read

from .. import plan
from . import controllers

BMAP = controllers.DIRECTORY / plan.BMAP


@pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked")
def test_a_controller_that_is_taken_out_gives_an_error() -> None:
    catalog = from_tree(BlockReader.tree(bmap=BMAP), file_filters="*.bin")
    epoch = np.arange(len(catalog))
    end = time.monotonic() + 60
    with BlockReader(catalog, bmap=BMAP, uri=controllers.disk(plan.MAPPED)) as reader:
        expected = read(reader, epoch)
        (controllers.DIRECTORY / "reading").touch()
        with pytest.raises(OSError) as caught:
            while time.monotonic() < end:
                assert read(reader, epoch) == expected
        assert caught.value.filename in [os.fsdecode(path) for path in catalog.paths(epoch)]
        for sample in range(len(catalog)):
            with pytest.raises(OSError):
                read(reader, np.array([sample]))
