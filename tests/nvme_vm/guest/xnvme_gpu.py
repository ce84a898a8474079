"""The promises of a reader, by xnvme-block on GPU memory; xnvme_pci.py has its commands."""

import gc

import pytest

from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.order import Order, OrderOptions
from tests.kit.reading_ahead import reading_ahead
from tests.nvme_vm import plan
from tests.nvme_vm.guest import vram, ways
from tests.nvme_vm.guest.promises import DiskPromises

pytestmark = ways.ONLY_MAIN


class TestPromises(DiskPromises):
    serial, way = plan.TWO_NAMESPACES, staticmethod(ways.gpu)
    batches = 100

    @pytest.mark.parametrize("depth", [1, 3])
    def test_batches_are_read_ahead(self, catalog, contents, depth):
        order = Order(len(catalog), 5, OrderOptions(random_shuffle=True, seed=2))
        machine = vram.VramMemory.machine
        assert machine is not None
        ahead = reading_ahead(catalog, self.open(catalog), order, depth)
        for index in range(8):
            batch = ahead.get(index)
            assert {content.gpu for content in batch.outputs[0]} == {0}
            found = [content.tobytes() for content in batch.outputs[0]]
            assert found == [contents[sample] for sample in batch.samples.tolist()]
        ahead.close()
        del batch, ahead
        gc.collect()
        assert not machine.allocated

    def open(self, catalog):
        return XnvmeBlockReader(catalog, bmap=self.bmap, uri=self.function)
