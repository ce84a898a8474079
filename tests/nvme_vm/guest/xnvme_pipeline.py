"""Pipelines that decode JPEGs from raw NVMe reads by the backend xnvme-block."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmark
from dali_storage.contract.errors import MapNotChecked
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways
from tests.nvme_vm.guest.pipeline import require_images_of_readers_file


@ways.TO_HOST_MEMORY
def test_images_and_labels_are_those_of_fn_readers_file(way: ways.Way) -> None:
    with way(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-block", uri)


@ways.TO_HOST_MEMORY
def test_the_benchmark_needs_only_a_device_and_its_map(
    tmp_path: Path, way: ways.Way, capfd: pytest.CaptureFixture[str]
) -> None:
    bmap, kept = controllers.DIRECTORY / plan.BMAP, tmp_path / "result.json"
    with way(plan.MAPPED) as uri:
        options = ("--uri", uri, "--bmap", str(bmap), "--batchsize", "8", "--json", str(kept))
        with pytest.warns(MapNotChecked, match="not mounted"):
            assert benchmark.main(["xnvme-gds", *options]) == 0
    (leg,) = json.loads(kept.read_text())["legs"].values()
    (one,) = leg["rounds"]
    files = (controllers.DIRECTORY / plan.FILES).glob("*/*.jpg")
    assert one["bytes"] == sum(path.stat().st_size for path in files)
    assert ("fio: it reads block devices" in capfd.readouterr().out) == (way is not ways.disk)
