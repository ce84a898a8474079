"""The xnvme backends on emulated NVMe controllers, with each libxnvme that there is."""

from tests.nvme_vm import plan
from tests.nvme_vm.disks import disk, empty_disks, sparse, unusual_disks
from tests.nvme_vm.guests import guest_tests, run, run_and_take_out
from tests.nvme_vm.machine import Machine

BROKEN = {
    "bad": ("class1/04.bin", 140_000),
    "once disk": ("class2/11.bin", 299_000),
    "once node": ("class0/12.bin", 299_000),
    "once address": ("class1/13.bin", 299_000),
    "once gpu": ("class2/14.bin", 299_000),
    "not retried disk": ("class0/06.bin", 70_000),
    "not retried node": ("class1/07.bin", 70_000),
    "not retried address": ("class2/08.bin", 70_000),
    "not retried gpu": ("class0/09.bin", 70_000),
}
"""Bad sectors on the mapped disk. One whose name ends with a way is for that way only."""


def machine(directory, *disks, iommu=False):
    """A machine with everything that libxnvme's own driver needs."""
    return Machine(
        directory=directory,
        controllers=disks,
        memory_mib=2048,
        hugepages=plan.XNVME_HUGEPAGES,
        iommu=iommu,
    )


def test_xnvme_reads_right_reports_failures_and_survives_the_removal_of_controllers(xnvme, mapped):
    directory = mapped.directory
    taken_out = [disk(serial, sparse(directory / serial, 64 << 20)) for serial in plan.TAKEN_OUT]
    others = (*empty_disks(directory), *unusual_disks(directory), mapped.break_sectors(BROKEN))
    modules = ("xnvme", "xnvme_pci", "xnvme_faults", "xnvme_namespaces")
    last = ("xnvme_gpu", "xnvme_left", "xnvme_removal")
    command = guest_tests(*modules, *last, XNVME_LIBRARY_PATH=xnvme.path)
    ways = 4 if xnvme.version == "main" else 2  # not by the PCI address
    run_and_take_out(machine(directory, *taken_out, *others), command, ways)


def test_xnvme_block_reads_by_vfio_and_feeds_pipelines(xnvme, mapped):
    disks = (*empty_disks(mapped.directory), mapped.controller())
    modules = ("xnvme_pipeline", "xnvme_pci") if xnvme.version == "main" else ("xnvme_pipeline",)
    command = guest_tests(*modules, XNVME_LIBRARY_PATH=xnvme.path)
    run(machine(mapped.directory, *disks, iommu=True), command)
