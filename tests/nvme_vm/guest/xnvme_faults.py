"""The backend xnvme-block on a disk with bad sectors; some fail once, for one way each."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.samples.discovery import from_tree
from dali_storage.testing import read
from tests.nvme_vm import plan
from tests.nvme_vm.guest import ways
from tests.nvme_vm.guest.faults import (
    BMAP,
    contents,
    failure,
    known_faults,
    read_epoch,
    require_named,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked"),
    pytest.mark.usefixtures("driver_without_retries"),
]

STATUS = "NVMe status Unrecovered Read Error (SCT 2h, SC 81h)"
WORDS = {ways.disk: (errno.ENODATA, ": cannot read "), ways.node: (errno.EIO, STATUS)}
"""How a bad sector is reported: by the kernel's errno for a block device, else by its status."""


@pytest.fixture
def catalog() -> Catalog:
    return from_tree(XnvmeBlockReader.tree(bmap=BMAP), file_filters="*.bin")


def require_status(error: OSError, way: ways.Way) -> None:
    code, words = WORDS.get(way, WORDS[ways.node])
    assert error.errno == code
    assert words in str(error)


@ways.ALL
def test_a_read_that_fails_once_fails_without_retries(catalog: Catalog, way: ways.Way) -> None:
    fault = known_faults(catalog)[f"not retried {way.__name__}"]
    sample = np.array([fault["sample"]])
    with (
        way(plan.MAPPED) as uri,
        XnvmeBlockReader(catalog, bmap=BMAP, uri=uri, retries=0) as reader,
    ):
        error = failure(reader, sample)
        assert read(reader, sample) == contents(catalog, sample)
    require_status(error, way)
    require_named(error, fault)


@ways.ALL
def test_an_epoch_with_a_bad_sector_and_one_that_fails_once(
    catalog: Catalog, way: ways.Way
) -> None:
    faults = known_faults(catalog)
    others = [
        fault["sample"]
        for kind, fault in faults.items()
        if kind not in ("bad", f"once {way.__name__}")
    ]
    epoch = np.delete(np.arange(len(catalog)), others)
    with (
        way(plan.MAPPED) as uri,
        XnvmeBlockReader(catalog, bmap=BMAP, uri=uri, retries=1) as reader,
    ):
        error = read_epoch(reader, catalog, epoch, faults["bad"]["sample"])
    require_status(error, way)
    require_named(error, faults["bad"])
