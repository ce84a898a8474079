"""Pipelines that decode JPEGs from raw NVMe reads by the backend xnvme-block."""

from pathlib import Path

import pytest

from tests.nvme_vm import plan
from tests.nvme_vm.guest import ways
from tests.nvme_vm.guest.pipeline import require_benchmark, require_images_of_readers_file


@ways.TO_HOST_MEMORY
def test_images_and_labels_are_those_of_fn_readers_file(way: ways.Way) -> None:
    with way(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-block", uri)


@ways.TO_HOST_MEMORY
def test_the_benchmark_needs_only_a_device_and_its_map(
    tmp_path: Path, way: ways.Way, capfd: pytest.CaptureFixture[str]
) -> None:
    with way(plan.MAPPED) as uri:
        require_benchmark("xnvme-gds", uri, tmp_path)
    assert ("fio: it reads block devices" in capfd.readouterr().out) == (way is not ways.disk)
