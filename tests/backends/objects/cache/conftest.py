from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.devices import require, run
from tests.kit.objects.cached import Folder, Store, StoreReader


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """The directory of the cache, which does not exist yet."""
    return Folder(tmp_path / "cache")


@pytest.fixture
def reader(store: Store, folder: Folder) -> Iterator[StoreReader]:
    with StoreReader(store, folder) as reader:
        yield reader
        assert folder.counted() == folder.occupied()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Folder]:
    """A file system of 1 MiB of its own."""
    require("mount", "umount")
    (disk := Folder(tmp_path / "disk")).mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    yield disk
    run("umount", str(disk))
