import pytest

from dali_storage.backends.objects.cache import quota
from tests.kit.devices import require, run
from tests.kit.objects.cached import Folder, Store, StoreReader


@pytest.fixture
def store():
    return Store()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The directory of the cache, which does not exist yet; the disk may be nearly full."""
    monkeypatch.setattr(quota, "_KEPT_FREE", 0)
    return Folder(tmp_path / "cache")


@pytest.fixture
def reader(store, folder):
    with StoreReader(store, folder) as reader:
        yield reader
        assert folder.counted() == folder.occupied()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB of its own."""
    require("mount", "umount")
    (disk := Folder(tmp_path / "disk")).mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    yield disk
    run("umount", str(disk))
