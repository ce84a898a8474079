"""A controller is bound to the kernel's driver while memory of its reader is still alive."""

import gc

import pytest

from dali_storage.contract.errors import BackendUnavailable
from tests.nvme_vm import plan
from tests.nvme_vm.guest import ways
from tests.nvme_vm.guest.xnvme_namespaces import filled

pytestmark = ways.ONLY_MAIN


def test_a_controller_is_not_touched_while_memory_of_its_reader_is_alive(tmp_path):
    layout = filled(tmp_path / "mnt", plan.TWO_NAMESPACES)
    with ways.address(plan.TWO_NAMESPACES) as function:
        with layout.open(function) as reader:
            memory = reader.allocate(1 << 20)
        del reader
    assert layout.is_read_right(layout.disk)
    for _ in range(2):
        with ways.address(plan.TWO_NAMESPACES) as function:
            with pytest.raises(BackendUnavailable, match=f"{function} .* took it over; restart"):
                layout.open(function)
            memory = None  # libxnvme still knows the controller
            gc.collect()
    assert memory is None
    assert layout.is_read_right(layout.disk)
