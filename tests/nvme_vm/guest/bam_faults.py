"""The backend xnvme-bam on a disk with bad sectors, and pipelines that read by it."""

import pytest

from dali_storage.backends.xnvme_bam import XnvmeBamReader
from tests.nvme_vm import plan
from tests.nvme_vm.guest import ways
from tests.nvme_vm.guest.xnvme_faults import FaultPromises
from tests.nvme_vm.guest.xnvme_pipeline import require_images_of_readers_file

pytestmark = pytest.mark.usefixtures("on_the_processor")


@pytest.mark.parametrize("way", [ways.address])
class TestBam(FaultPromises):
    backend = XnvmeBamReader
    options = (("queue_depth", 7),)


def test_images_and_labels_are_those_of_fn_readers_file():
    with ways.address(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-bam", uri)
