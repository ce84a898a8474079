"""The backend xnvme-bam on a disk with bad sectors, and pipelines that read by it."""

from pathlib import Path

import pytest

from dali_storage.backends.xnvme_bam import XnvmeBamReader
from tests.nvme_vm import plan
from tests.nvme_vm.guest import ways
from tests.nvme_vm.guest.launching import on_the_processor as on_the_processor
from tests.nvme_vm.guest.pipeline import require_benchmark, require_images_of_readers_file
from tests.nvme_vm.guest.xnvme_faults import FaultPromises

pytestmark = [
    pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked"),
    pytest.mark.usefixtures("on_the_processor"),
]


@pytest.mark.parametrize("way", [ways.address])
class TestBam(FaultPromises):
    backend = XnvmeBamReader
    options = (("queue_depth", 7),)


def test_images_and_labels_are_those_of_fn_readers_file() -> None:
    with ways.address(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-bam", uri)


def test_the_benchmark_needs_only_a_controller_and_its_map(tmp_path: Path) -> None:
    with ways.address(plan.MAPPED) as uri:
        require_benchmark("xnvme-bam", uri, tmp_path)
