from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.catalog import Catalog
from dali_storage.reader import Reader
from dali_storage.testing import ObjectTests

from .objects.client import FaultServer


class TestObjects(ObjectTests):
    """Objects that are not listed: asked for their sizes and versions at first use."""

    batches = 300

    @pytest.fixture(autouse=True)
    def bucket(self, server: FaultServer, directory: Path) -> None:
        self.server, self.directory_served = server, directory
        server.serve("data", directory)

    def open(self, catalog: Catalog) -> Reader:
        return ObjectStoreReader(catalog)

    def published(self, catalog: Catalog) -> Catalog:
        return replace(catalog, root=b"s3://data")

    def file(self, catalog: Catalog, sample: int) -> Path:
        return self.directory_served / os.fsdecode(catalog.name(sample))
