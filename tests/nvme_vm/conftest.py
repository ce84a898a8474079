from __future__ import annotations

import sys

import pytest

from . import plan
from .disks import MappedDisk, plant, sparse
from .guests import run
from .machine import Machine


@pytest.fixture(scope="session")
def mapped(tmp_path_factory: pytest.TempPathFactory) -> MappedDisk:
    """A disk with files that a guest has mapped, which is not written to any more."""
    made = MappedDisk(tmp_path_factory.mktemp("mapped"))
    plant(made.directory / plan.FILES)
    sparse(made.image, 64 << 20)
    machine = Machine(directory=made.directory, controllers=(made.controller(),))
    run(machine, [sys.executable, "-m", f"{__package__}.guest.prepare"])
    return made
