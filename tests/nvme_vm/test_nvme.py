"""The backend block on emulated NVMe controllers: boots machines and runs tests of `guest`."""

import shutil

from tests.nvme_vm import plan
from tests.nvme_vm.disks import disk, empty_disks
from tests.nvme_vm.guests import guest_tests, run, run_and_take_out
from tests.nvme_vm.machine import Machine


def test_block_reads_hostile_layouts_right(tmp_path):
    run(Machine(directory=tmp_path, controllers=empty_disks(tmp_path)), guest_tests("block"))


def test_block_reads_a_mapped_disk_with_faults_until_it_is_removed(mapped):
    broken = mapped.break_sectors(
        {"bad": ("class1/04.bin", 140_000), "once": ("class2/11.bin", 299_000)}
    )
    copy = shutil.copyfile(mapped.image, mapped.directory / plan.FOREIGN)
    disks = (broken, disk(plan.FOREIGN, copy))
    command = guest_tests("faults", "removal")
    run_and_take_out(Machine(directory=mapped.directory, controllers=disks), command, 1)
