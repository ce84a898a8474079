"""The backend xnvme-block on NVMe controllers by PCI address, with libxnvme's own driver."""

import pytest

from dali_storage.backends.xnvme import library as _xnvme
from dali_storage.contract.errors import BackendUnavailable
from tests.nvme_vm.guest import vram, ways


def test_hostile_layouts_by_the_pci_address(layout):
    with ways.address(layout.serial) as function:
        if _xnvme.load().version == "0.7.5":
            with pytest.raises(BackendUnavailable, match="cannot read from a PCI address"):
                layout.is_read_right(function)
        else:
            assert layout.is_read_right(function, queue_depth=16)
            assert layout.is_read_right(function, queue_depth=16, queues=1, spin=True)


@ways.ONLY_MAIN
@pytest.mark.parametrize("max_transfer", [None, 4096, 20 << 10, 2 << 20])
def test_hostile_layouts_to_gpu_memory(layout, max_transfer):
    options = {"queue_depth": 2 if max_transfer == 20 << 10 else 16, "max_transfer": max_transfer}
    before = vram.VramMemory.flushes
    with ways.gpu(layout.serial) as function:
        assert layout.is_read_right(function, **options)
    assert vram.VramMemory.flushes == before + 1


@ways.ONLY_MAIN
def test_commands_and_queues_as_long_as_upcie_supports(layout):
    with ways.address(layout.serial) as function:
        assert layout.is_read_right(function, max_transfer=2 << 20)
        assert layout.is_read_right(function, queue_depth=512, queues=1)
        with pytest.raises(ValueError, match=r"max_transfer must be .* at most 2097152, the bytes"):
            layout.open(function, max_transfer=4 << 20)
        with pytest.raises(ValueError, match="queue_depth must be at most 512 for a PCI address"):
            layout.open(function, queue_depth=1024)
