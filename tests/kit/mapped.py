"""Tests that all readers of extent maps share: the promises, on disks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends.linux import aio
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.reader import Reader
from dali_storage.testing import MappedReaderTests, SnapshotRangeTests
from tests.kit.devices import Disk, disk
from tests.kit.layouts import make_map

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="loop devices and mounting need root: run the tests as root"
)


class OnDisk(SnapshotRangeTests, MappedReaderTests):
    """The promises of `backend` on its own disk, opened by `uri()`."""

    backend: ClassVar[Callable[..., Reader]]
    file_system = "ext4"
    sector = 512
    partition = False
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def disk(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
        directory = tmp_path_factory.mktemp("disk")
        with disk(directory, cls.file_system, sector=cls.sector, partition=cls.partition) as made:
            yield made

    @pytest.fixture
    def directory(self, disk: Disk, tmp_path: Path) -> Iterator[Path]:
        self.disk_used, self.bmap = disk, tmp_path / "bmap.json"
        directory = disk.mount / tmp_path.name
        directory.mkdir()
        yield directory
        shutil.rmtree(directory)  # the disk is not large

    def uri(self) -> str | Path | None:
        return None

    def open(self, catalog: Catalog) -> Reader:
        make_map(catalog.root, self.bmap)
        return self.backend(catalog, bmap=self.bmap, uri=self.uri(), **self.options)

    def reopen(self, reader: Reader, catalog: Catalog) -> Reader:
        return self.backend(catalog, bmap=self.bmap, uri=self.uri(), **self.options)


class FailingAio:
    """Reads of a device with a bad sector: a read that covers it fails, or is short."""

    bad = -1
    outcome = -errno.EIO
    times = 10**9
    merges = False  # the kernel has merged all reads of a submission
    read = staticmethod(aio.read)

    @classmethod
    def fail(cls, depth: int, fd: int, iovecs: Any, offsets: Any) -> Any:
        results = cls.read(depth, fd, iovecs, offsets)
        hit = (offsets <= cls.bad) & (offsets + iovecs["len"][:, 0].astype(np.int64) > cls.bad)
        if hit.any() and cls.times:
            cls.times -= 1
            results[hit | cls.merges] = cls.outcome
        return results


UNPRIVILEGED = """
import importlib, os, sys
from dali_storage.samples.discovery import from_directory
module, name, directory, bmap, uri = sys.argv[1:]
backend = getattr(importlib.import_module(module), name)
catalog = from_directory(directory, file_filters="*")
tree = backend.tree(bmap=bmap)  # Python itself may be out of reach from then on
backend.unavailable()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
backend(catalog, bmap=bmap, uri=uri)
"""


def require_permission_to_be_named(
    backend: type[Reader], mapped: tuple[Catalog, Path], uri: str
) -> None:
    """A user who may not read a device gets an error that says so, and what to do about it."""
    catalog, bmap = mapped
    for directory in bmap.parents[:3]:
        os.chmod(directory, 0o755)
    names = (backend.__module__, backend.__name__, os.fsdecode(catalog.root))
    done = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, *names, str(bmap), uri],
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "dali_storage.contract.errors.BackendUnavailable: no permission to read /dev/"
    )
    for remedy in ("run as root", "setfacl", "image file"):
        assert remedy in last
