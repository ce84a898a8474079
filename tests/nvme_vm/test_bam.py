"""The backend xnvme-bam on emulated NVMe controllers: its kernel runs on the processor."""

import pytest

from tests.nvme_vm import plan
from tests.nvme_vm.disks import disk, empty_disks, sparse
from tests.nvme_vm.guests import guest_tests, run, run_and_take_out
from tests.nvme_vm.test_xnvme import machine

BROKEN = {
    "bad": ("class1/04.bin", 140_000),
    "once address": ("class2/11.bin", 299_000),
    "not retried address": ("class0/06.bin", 70_000),
}


@pytest.fixture
def command(xnvme, host_kernel):
    """The start of the command for the guest."""
    if xnvme.version != "main":
        pytest.skip("it needs a libxnvme of the main branch: set XNVME_TEST_LIBRARIES")
    return guest_tests(XNVME_LIBRARY_PATH=xnvme.path, HOST_KERNEL=str(host_kernel))


def test_bam_reads_right_and_leaves_nothing(command, mapped):
    directory, serial = mapped.directory, plan.TAKEN_OUT[0]
    taken_out = disk(serial, sparse(directory / serial, 64 << 20))
    disks = (taken_out, *empty_disks(directory), mapped.break_sectors(BROKEN))
    modules = guest_tests("bam", "bam_faults", "bam_promises")[-3:]
    run_and_take_out(machine(directory, *disks), [*command, *modules], 1)


def test_bam_reads_by_vfio(command, mapped):
    sizes = [(serial, sector) for sector, serial in plan.EMPTY.items()]
    disks = [
        disk(serial, sparse(mapped.directory / serial, 400 << 20), logical_block_size=sector)
        for serial, sector in sizes
    ]
    modules = guest_tests("bam")[-1:]
    run(machine(mapped.directory, *disks, iommu=True), [*command, *modules])
