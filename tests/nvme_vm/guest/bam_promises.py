"""The promises of a reader, by xnvme-bam; and a controller that is removed while it is read."""

import errno

import numpy as np
import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.testing import read
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways
from tests.nvme_vm.guest.promises import DiskPromises
from tests.nvme_vm.guest.removal import failure_when_taken_out
from tests.nvme_vm.guest.xnvme_namespaces import filled
from tests.nvme_vm.guest.xnvme_removal import TIMEOUT, prepare

pytestmark = pytest.mark.usefixtures("on_the_processor")


class TestPromises(DiskPromises):
    serial, way = plan.EMPTY[4096], staticmethod(ways.address)
    batches = 100

    def open(self, catalog):
        return XnvmeBamReader(catalog, bmap=self.bmap, uri=self.function)


def test_a_controller_that_another_driver_took_is_not_touched(tmp_path):
    layout = filled(tmp_path / "mnt", plan.EMPTY[512])
    with ways.address(layout.serial) as uri:
        reader = XnvmeBamReader(layout.catalog, bmap=layout.bmap, uri=uri)
        assert read(reader, np.arange(20)) == layout.contents
    with pytest.raises(OSError) as caught:
        read(reader, np.arange(3))
    assert (caught.value.errno, caught.value.filename) == (errno.ENODEV, uri)
    reader.close()
    assert layout.is_read_right(layout.disk)


def test_a_removed_controller_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(xnvme_bam, "TIMEOUT_S", TIMEOUT)
    catalog, bmap = prepare(0, tmp_path)
    function = controllers.address(plan.TAKEN_OUT[0])
    controllers.bind(function, "uio_pci_generic")
    reader = XnvmeBamReader(catalog, bmap=bmap, uri=function)
    error = failure_when_taken_out(reader, catalog, 0)
    assert error.errno in (errno.ETIMEDOUT, errno.ENODEV)  # in the middle of a batch, or not
    assert error.filename == function
