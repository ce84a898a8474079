"""The xnvme backends on emulated NVMe controllers, with each libxnvme that there is."""

from __future__ import annotations

from dali_storage.backends import _xnvme

from . import plan
from .disks import MappedDisk, empty_disks
from .guests import guest_tests, run
from .machine import Machine


def test_xnvme_block_reads_hostile_layouts_right_and_names_what_a_bad_sector_hits(
    xnvme: _xnvme.Library, mapped: MappedDisk
) -> None:
    broken = mapped.break_sectors(
        {
            "bad": ("class1/04.bin", 140_000),
            "once": ("class2/11.bin", 299_000),
            "not retried": ("class0/06.bin", 70_000),
        }
    )
    machine = Machine(
        directory=mapped.directory,
        controllers=(*empty_disks(mapped.directory), broken),
        memory_mib=2048,
        hugepages=plan.XNVME_HUGEPAGES,
    )
    run(machine, guest_tests("xnvme", XNVME_LIBRARY_PATH=xnvme.path))
