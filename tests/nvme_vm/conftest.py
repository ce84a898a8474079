import sys
from pathlib import Path

import pytest

from tests.kit.nvme_sim.build import build_kernel, sources
from tests.nvme_vm import plan
from tests.nvme_vm.disks import MappedDisk, plant, sparse
from tests.nvme_vm.guests import run
from tests.nvme_vm.machine import Machine


@pytest.fixture(scope="session")
def mapped(tmp_path_factory):
    """A disk with files that a guest has mapped, which is not written to any more."""
    made = MappedDisk(tmp_path_factory.mktemp("mapped"))
    plant(made.directory / plan.FILES)
    sparse(made.image, 64 << 20)
    machine = Machine(directory=made.directory, controllers=(made.controller(),))
    run(machine, [sys.executable, "-m", f"{__package__}.guest.prepare"])
    return made


@pytest.fixture(scope="session")
def host_kernel(tmp_path_factory):
    """The kernel of the GPU for the processor of a guest."""
    texts = sources()
    texts["host.cpp"] += Path(__file__).with_name("discard.cpp").read_text()
    return build_kernel(tmp_path_factory.mktemp("kernel") / "build", 1, texts=texts)
