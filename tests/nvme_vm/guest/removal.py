"""A controller is removed while it is read: the host removes it when the file `reading` appears."""

import os
import time

import numpy as np
import pytest

from dali_storage.backends.block import BlockReader
from dali_storage.samples.discovery import from_tree
from dali_storage.testing import read
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers

BMAP = controllers.DIRECTORY / plan.BMAP
AT_ONCE = 300.0  # seconds; with a timeout for each sample it would take twice as long


def test_a_removed_controller_is_an_error():
    catalog = from_tree(
        BlockReader.tree(bmap=BMAP), file_filters="*.jpg"
    )  # the others may be faulty
    with BlockReader(catalog, bmap=BMAP, uri=controllers.disk(plan.MAPPED)) as reader:
        error = failure_when_taken_out(reader, catalog, 0)
    assert error.filename in [os.fsdecode(path) for path in catalog.paths(np.arange(len(catalog)))]


def failure_when_taken_out(reader, catalog, number):
    """Read epochs until reading fails because the host has removed the controller `number`.

    From then on every sample must fail at once, in every lane.
    """
    epoch, end = np.arange(len(catalog)), time.monotonic() + 600
    expected = read(reader, epoch)
    (controllers.DIRECTORY / f"{plan.READING}{number}").touch()
    with pytest.raises(OSError) as caught:
        while time.monotonic() < end:
            assert read(reader, epoch) == expected
    start = time.monotonic()
    for lane in range(reader.lanes):
        for sample in epoch.tolist():
            with pytest.raises(OSError):
                read(reader, np.array([sample]), lane=lane)
    reader.close()
    assert time.monotonic() - start < AT_ONCE
    return caught.value
