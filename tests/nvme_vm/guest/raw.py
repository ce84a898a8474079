"""The machine itself: controllers have the bytes of their images and the requested faults."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers


def read(node: str, position: int, length: int) -> bytes:
    fd = os.open(node, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, length) as memory:
            got = os.preadv(fd, [memory], position)
            return memory[:got]
    finally:
        os.close(fd)


def queue(node: str, attribute: str) -> int:
    return int(Path(f"/sys/block/{os.path.basename(node)}/queue/{attribute}").read_text())


@pytest.mark.parametrize("serial", [plan.RAW_512, plan.RAW_4096])
def test_the_bytes_are_those_of_the_image(serial: str) -> None:
    expected = (controllers.DIRECTORY / serial).read_bytes()
    node = controllers.disk(serial)
    assert read(node, 0, 1 << 20) == expected[: 1 << 20]
    assert read(node, plan.RAW_SIZE - 8192, 8192) == expected[-8192:]
    assert Path(f"/sys/block/{os.path.basename(node)}/size").read_text() == "8192\n"


def test_a_controller_has_its_block_size_and_its_largest_transfer() -> None:
    node = controllers.disk(plan.RAW_4096)
    assert queue(node, "logical_block_size") == 4096
    assert queue(node, "max_hw_sectors_kb") == 64
    with pytest.raises(OSError) as caught:
        read(node, 512, 4096)
    assert caught.value.errno == errno.EINVAL
    assert queue(controllers.disk(plan.RAW_512), "logical_block_size") == 512


def test_a_bad_sector_fails_and_no_other() -> None:
    node, bad = controllers.disk(plan.RAW_512), plan.RAW_BAD_SECTOR * 512
    expected = (controllers.DIRECTORY / plan.RAW_512).read_bytes()
    for start, length in ((bad, 512), (bad - 4096, 8192)):
        with pytest.raises(OSError) as caught:
            read(node, start, length)
        assert caught.value.errno == errno.ENODATA  # the kernel's word for a medium error
    assert read(node, bad - 4096, 4096) == expected[bad - 4096 : bad]
    assert read(node, bad + 512, 4096) == expected[bad + 512 : bad + 512 + 4096]


@pytest.mark.parametrize(
    ("driver", "where"), [("uio_pci_generic", "/dev/uio0"), ("vfio-pci", "/dev/vfio/vfio")]
)
def test_a_driver_for_user_space_takes_a_controller(driver: str, where: str) -> None:
    node, function = controllers.disk(plan.RAW_4096), controllers.address(plan.RAW_4096)
    with controllers.bound(function, driver):
        assert not os.path.exists(node)
        assert os.path.exists(where)
    node = controllers.wait_for_disk(plan.RAW_4096)
    assert read(node, 0, 4096) == (controllers.DIRECTORY / plan.RAW_4096).read_bytes()[:4096]


def test_there_are_huge_pages_and_an_iommu() -> None:
    pages = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text()
    assert int(pages) == plan.RAW_HUGEPAGES
    function = controllers.address(plan.RAW_512)
    assert os.path.exists(f"/sys/bus/pci/devices/{function}/iommu_group")
