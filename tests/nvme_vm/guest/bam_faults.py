"""The backend xnvme-bam on a disk with bad sectors, and pipelines that read by it."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest

import benchmark
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import MapNotChecked
from dali_storage.samples.discovery import from_tree
from dali_storage.testing import read
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways
from tests.nvme_vm.guest.faults import (
    BMAP,
    contents,
    failure,
    known_faults,
    read_epoch,
    require_named,
)
from tests.nvme_vm.guest.launching import on_the_processor as on_the_processor
from tests.nvme_vm.guest.pipeline import require_images_of_readers_file
from tests.nvme_vm.guest.xnvme_faults import STATUS

pytestmark = [
    pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked"),
    pytest.mark.usefixtures("on_the_processor"),
]


@pytest.fixture
def catalog() -> Catalog:
    return from_tree(XnvmeBamReader.tree(bmap=BMAP), file_filters="*.bin")


def require_status(error: OSError) -> None:
    assert error.errno == errno.EIO
    assert STATUS in str(error)


def test_a_read_that_fails_once_fails_without_retries(catalog: Catalog) -> None:
    fault = known_faults(catalog)["not retried"]
    sample = np.array([fault["sample"]])
    with (
        ways.address(plan.MAPPED) as uri,
        XnvmeBamReader(catalog, bmap=BMAP, uri=uri, retries=0) as reader,
    ):
        error = failure(reader, sample)
        assert read(reader, sample) == contents(catalog, sample)
        del reader
    require_status(error)
    require_named(error, fault)


def test_an_epoch_with_a_bad_sector_and_one_that_fails_once(catalog: Catalog) -> None:
    bad = known_faults(catalog)["bad"]
    with (
        ways.address(plan.MAPPED) as uri,
        XnvmeBamReader(catalog, bmap=BMAP, uri=uri, queue_depth=7) as reader,
    ):
        error = read_epoch(reader, catalog, np.arange(len(catalog)), bad["sample"])
        del reader
    require_status(error)
    require_named(error, bad)


def test_images_and_labels_are_those_of_fn_readers_file() -> None:
    with ways.address(plan.MAPPED) as uri:
        require_images_of_readers_file("xnvme-bam", uri)


def test_the_benchmark_needs_only_a_controller_and_its_map(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    with ways.address(plan.MAPPED) as uri:
        options = ("--uri", uri, "--bmap", str(BMAP), "--batchsize", "8", "--json", str(kept))
        with pytest.warns(MapNotChecked, match="not mounted"):
            assert benchmark.main(["xnvme-bam", *options]) == 0
    (leg,) = json.loads(kept.read_text())["legs"].values()
    (one,) = leg["rounds"]
    files = (controllers.DIRECTORY / plan.FILES).glob("*/*.jpg")
    assert one["bytes"] == sum(path.stat().st_size for path in files)
