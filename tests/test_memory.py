from __future__ import annotations

import os

import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.reader import Reader
from dali_storage.testing import SnapshotRangeTests

from .fake_cuda import FastCopies, install, put_on_gpu


class TestMemory(SnapshotRangeTests):
    batches = 10_000
    openings = 1_000

    def open(self, catalog: Catalog) -> Reader:
        return MemoryReader(catalog)

    def test_a_missing_file_is_named_when_it_is_opened(self, catalog: Catalog) -> None:
        os.unlink(catalog.path(3))
        with pytest.raises(FileNotFoundError) as caught:
            MemoryReader(catalog)
        assert os.fsencode(caught.value.filename) == catalog.path(3)


class TestMemoryOnAGpu(SnapshotRangeTests):
    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, FastCopies())

    def open(self, catalog: Catalog) -> Reader:
        return put_on_gpu(MemoryReader(catalog))
