"""Boots machines with emulated NVMe controllers, and runs the tests of `guest` in them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_storage.backends import _xnvme

from . import plan
from .hardware import Controller, ReadError
from .machine import Machine, MachineError

_GUEST = Path(__file__).with_name("guest")
_TIMEOUT = 240.0  # seconds; most take 10 to 20, on a busy computer


def guest_tests(module: str, *environment: str) -> list[str]:
    """The command that runs a module of the guest's tests, without pytest plugins or traces."""
    return [
        *(
            "env",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
            *environment,
            sys.executable,
            "-m",
            "pytest",
            "-q",
        ),
        *("-p", "no:cacheprovider", "--basetemp=/run/pytest", f"--confcutdir={_GUEST}"),
        str(_GUEST / f"{module}.py"),
    ]


def run(machine: Machine, command: list[str]) -> None:
    """Run a command that must succeed."""
    done = machine.run(command, _TIMEOUT)
    assert done.returncode == 0, done.output


# The machine itself


def test_a_command_hands_back_its_status_and_its_output(tmp_path: Path) -> None:
    script = "echo to the host; echo error >&2; echo kept > $NVME_VM/file; > /etc/forgotten; exit 7"
    done = Machine(directory=tmp_path).run(["sh", "-c", script], _TIMEOUT)
    assert (done.returncode, done.output) == (7, "to the host\nerror\n")
    assert (tmp_path / "file").read_text() == "kept\n"
    assert not Path("/etc/forgotten").exists()


def test_a_guest_that_hangs_is_switched_off_and_its_last_words_are_shown(tmp_path: Path) -> None:
    script = "echo last words; echo on the console > /dev/console; > $NVME_VM/hung; sleep 600"
    with Machine(directory=tmp_path).boot(["sh", "-c", script]) as running:
        running.wait_for("hung")
        with pytest.raises(MachineError, match=r"(?s)within 0.5 s.*on the console.*last words"):
            running.wait(0.5)
    with pytest.raises(MachineError, match="ended before its command did"):
        running.wait(10)


def test_a_guest_that_dies_has_no_status(tmp_path: Path) -> None:
    crash = "echo 1 > /proc/sys/kernel/sysrq; echo c > /proc/sysrq-trigger"
    with pytest.raises(MachineError, match=r"(?s)ended before its command did.*sysrq_handle_crash"):
        Machine(directory=tmp_path).run(["sh", "-c", crash], _TIMEOUT)


def test_a_machine_that_cannot_be_says_why(tmp_path: Path) -> None:
    machine = Machine(
        directory=tmp_path, controllers=(Controller(image=tmp_path / "none", serial="NONE"),)
    )
    with pytest.raises(MachineError, match=r"(?s)not switched on.*none.*No such file"):
        machine.run(["true"], _TIMEOUT)


def test_controllers_are_what_they_were_asked_to_be(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for serial in (plan.RAW_512, plan.RAW_4096):
        (tmp_path / serial).write_bytes(random.bytes(plan.RAW_SIZE))
    small = Controller(
        image=tmp_path / plan.RAW_512,
        serial=plan.RAW_512,
        read_errors=(ReadError(plan.RAW_BAD_SECTOR),),
    )
    large = Controller(
        image=tmp_path / plan.RAW_4096, serial=plan.RAW_4096, logical_block_size=4096, mdts=4
    )
    machine = Machine(
        directory=tmp_path, controllers=(small, large), hugepages=plan.RAW_HUGEPAGES, iommu=True
    )
    run(machine, guest_tests("raw"))


# The block backend


def sparse(path: Path, size: int) -> Path:
    """A file of zeros, which takes no space."""
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def test_block_reads_hostile_layouts_right(tmp_path: Path) -> None:
    run(Machine(directory=tmp_path, controllers=empty_disks(tmp_path)), guest_tests("block"))


def empty_disks(directory: Path) -> tuple[Controller, ...]:
    """One of each size of blocks."""
    return tuple(
        Controller(
            image=sparse(directory / serial, 400 << 20), serial=serial, logical_block_size=sector
        )
        for sector, serial in plan.EMPTY.items()
    )


@pytest.fixture(scope="module")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> Controller:
    """A disk with files that a guest has mapped; their map and their originals lie beside it."""
    directory = tmp_path_factory.mktemp("mapped")
    plant(directory / plan.FILES)
    disk = Controller(image=sparse(directory / plan.MAPPED, 64 << 20), serial=plan.MAPPED)
    machine = Machine(directory=directory, controllers=(disk,))
    run(machine, [sys.executable, "-m", f"{__package__}.guest.prepare"])
    return disk


def plant(root: Path) -> None:
    """JPEGs of different sizes, and files that any sector's bytes are only once in."""
    random = np.random.default_rng(1)
    for number in range(24):
        folder = root / f"class{number % plan.CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (64 + number, 90, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
        (folder / f"{number:02d}.bin").write_bytes(random.bytes(300_000 + number))


def fault(disk: Controller, name: str, offset: int) -> dict[str, Any]:
    """The sector with a byte of a file, found in the image by what the file holds there."""
    path = disk.image.parent / plan.FILES / name
    start = offset // 512 * 512
    position = disk.image.read_bytes().index(path.read_bytes()[start : start + 512])
    return {"name": name, "offset": start, "sector": position // 512}


def test_a_pipeline_decodes_images_out_of_reads_of_a_disk(mapped: Controller) -> None:
    run(Machine(directory=mapped.image.parent, controllers=(mapped,)), guest_tests("pipeline"))


def test_block_names_what_a_bad_sector_hits_and_reads_all_else(mapped: Controller) -> None:
    directory = mapped.image.parent
    bad, once = fault(mapped, "class1/04.bin", 140_000), fault(mapped, "class2/11.bin", 299_000)
    (directory / plan.FAULTS).write_text(json.dumps({"bad": bad, "once": once}))
    errors = (ReadError(bad["sector"]), ReadError(once["sector"], once=True))
    copy = shutil.copyfile(mapped.image, directory / plan.FOREIGN)
    disks = (
        dataclasses.replace(mapped, read_errors=errors),
        Controller(image=copy, serial=plan.FOREIGN),
    )
    run(Machine(directory=directory, controllers=disks), guest_tests("faults"))


def test_block_fails_when_a_controller_is_taken_out(mapped: Controller) -> None:
    machine = Machine(directory=mapped.image.parent, controllers=(mapped,))
    with machine.boot(guest_tests("removal")) as running:
        running.wait_for("reading", _TIMEOUT)
        running.take_out(0)
        done = running.wait(_TIMEOUT)
    assert done.returncode == 0, done.output


# The backend xnvme-block


def test_xnvme_block_reads_hostile_layouts_right_and_names_what_a_bad_sector_hits(
    xnvme: _xnvme.Library, mapped: Controller
) -> None:
    directory = mapped.image.parent
    faults = {
        "bad": fault(mapped, "class1/04.bin", 140_000),
        "once": fault(mapped, "class2/11.bin", 299_000),
        "not retried": fault(mapped, "class0/06.bin", 70_000),
    }
    (directory / plan.FAULTS).write_text(json.dumps(faults))
    errors = tuple(ReadError(f["sector"], once=kind != "bad") for kind, f in faults.items())
    disks = (*empty_disks(directory), dataclasses.replace(mapped, read_errors=errors))
    machine = Machine(
        directory=directory,
        controllers=disks,
        memory_mib=2048,
        hugepages=plan.XNVME_HUGEPAGES,
    )
    run(machine, guest_tests("xnvme", f"XNVME_LIBRARY_PATH={xnvme.path}"))
