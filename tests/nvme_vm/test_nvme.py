"""The backend block on emulated NVMe controllers: boots machines and runs tests of `guest`."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import plan
from .disks import MappedDisk, disk, empty_disks
from .guests import guest_tests, run, run_and_take_out
from .machine import Machine


def test_block_reads_hostile_layouts_right(tmp_path: Path) -> None:
    run(Machine(directory=tmp_path, controllers=empty_disks(tmp_path)), guest_tests("block"))


def test_a_pipeline_decodes_images_out_of_reads_of_a_disk(mapped: MappedDisk) -> None:
    machine = Machine(directory=mapped.directory, controllers=(mapped.controller(),))
    run(machine, guest_tests("pipeline"))


def test_block_names_what_a_bad_sector_hits_and_reads_all_else(mapped: MappedDisk) -> None:
    broken = mapped.break_sectors(
        {"bad": ("class1/04.bin", 140_000), "once": ("class2/11.bin", 299_000)}
    )
    copy = shutil.copyfile(mapped.image, mapped.directory / plan.FOREIGN)
    machine = Machine(directory=mapped.directory, controllers=(broken, disk(plan.FOREIGN, copy)))
    run(machine, guest_tests("faults"))


def test_block_fails_when_a_controller_is_taken_out(mapped: MappedDisk) -> None:
    machine = Machine(directory=mapped.directory, controllers=(mapped.controller(),))
    run_and_take_out(machine, guest_tests("removal"), 1)
