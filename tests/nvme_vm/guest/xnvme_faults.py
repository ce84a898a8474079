"""The backends of libxnvme on a disk with bad sectors; some fail once, for one way each."""

import errno
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.xnvme_block import XnvmeBlockReader
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

pytestmark = pytest.mark.usefixtures("driver_without_retries")

STATUS = "NVMe status Unrecovered Read Error (SCT 2h, SC 81h)"


def require_status(error, way):
    """A block device has the kernel's errno, other ways the status."""
    is_disk = way is ways.disk
    assert error.errno == (errno.ENODATA if is_disk else errno.EIO)
    assert (": cannot read " if is_disk else STATUS) in str(error)


class FaultPromises:
    """Subclasses have a `backend` and parametrize `way`."""

    backend: Any
    options: tuple[tuple[str, int], ...] = ()

    @pytest.fixture
    def catalog(self):
        return from_tree(self.backend.tree(bmap=BMAP), file_filters="*.bin")

    def open(self, catalog, uri, retries):
        return self.backend(catalog, bmap=BMAP, uri=uri, retries=retries, **dict(self.options))

    def test_a_read_that_fails_once_fails_without_retries(self, catalog, way):
        fault = known_faults(catalog)[f"not retried {way.__name__}"]
        sample = np.array([fault["sample"]])
        with way(plan.MAPPED) as uri, self.open(catalog, uri, 0) as reader:
            error = failure(reader, sample)
            assert read(reader, sample) == contents(catalog, sample)
            del reader
        require_status(error, way)
        require_named(error, fault)

    def test_an_epoch_with_a_bad_sector_and_one_that_fails_once(self, catalog, way):
        faults = known_faults(catalog)
        own = ("bad", f"once {way.__name__}")
        others = [fault["sample"] for kind, fault in faults.items() if kind not in own]
        epoch = np.delete(np.arange(len(catalog)), others)
        with way(plan.MAPPED) as uri, self.open(catalog, uri, 1) as reader:
            error = read_epoch(reader, catalog, epoch, faults["bad"]["sample"])
            del reader
        require_status(error, way)
        require_named(error, faults["bad"])


@ways.ALL
class TestBlock(FaultPromises):
    backend = XnvmeBlockReader
