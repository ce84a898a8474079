"""The promises of a reader, by xnvme-block on GPU memory; xnvme_pci.py has its commands."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.catalog import Catalog
from dali_storage.discovery import from_directory
from dali_storage.order import Order, OrderOptions
from dali_storage.prefetch import Prefetcher
from dali_storage.reader import Reader
from dali_storage.testing import SIZES, SnapshotReaderTests

from ...devices import make_file_system, mounted
from ...layouts import make_map
from .. import plan
from . import controllers, vram, ways

pytestmark = [
    ways.ONLY_MAIN,
    pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked"),
]

CONTENTS = [np.random.default_rng(size).bytes(size) for size in SIZES]


class TestPromises(SnapshotReaderTests):
    batches, interrupts = 100, 8

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def disk(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = tmp_path_factory.mktemp("promises")
        node, mount = controllers.disk(plan.TWO_NAMESPACES), directory / "mnt"
        make_file_system("ext4", node)
        with mounted(node, mount):
            (mount / "class").mkdir()
            for index, content in enumerate(CONTENTS):
                (mount / "class" / f"{index:03d}").write_bytes(content)
            cls.files = from_directory(mount, file_filters="*")
            cls.bmap = make_map(mount, directory / "bmap.json")
        (mount / "class").mkdir()
        with ways.gpu(plan.TWO_NAMESPACES) as cls.function:
            yield

    @pytest.fixture
    def contents(self) -> list[bytes]:
        return CONTENTS

    @pytest.fixture
    def catalog(self) -> Catalog:
        return self.files

    @pytest.mark.parametrize("depth", [1, 3])
    def test_batches_are_read_ahead(
        self, catalog: Catalog, contents: list[bytes], depth: int
    ) -> None:
        order = Order(len(catalog), 5, OrderOptions(random_shuffle=True, seed=2))
        machine = vram.VramMemory.machine
        assert machine is not None
        ahead = Prefetcher(catalog, self.open(catalog), order, depth)
        for index in range(8):
            batch = ahead.get(index)
            assert {content.gpu for content in batch.contents} == {0}
            found = [content.tobytes() for content in batch.contents]
            assert found == [contents[sample] for sample in batch.samples.tolist()]
        ahead.close()
        del batch, ahead
        gc.collect()
        assert not machine.allocated

    def open(self, catalog: Catalog) -> Reader:
        return XnvmeBlockReader(catalog, bmap=self.bmap, uri=self.function)
