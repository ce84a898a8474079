"""Samples that have no extents, and are read as files."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from bmap_tools import create
from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked, StaleMapError
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import Disk, disk
from tests.kit.fake_cuda import put_on_gpu
from tests.kit.mapped import NEEDS_ROOT, from_map, unmounted

pytestmark = NEEDS_ROOT

Inline: TypeAlias = tuple[Disk, Path]


@pytest.fixture
def inline(tmp_path):
    """A disk whose smallest file is inside its inode, and its map."""
    with disk(tmp_path, "ext4", mkfs=("-O", "inline_data", "-I", "256")) as made:
        (made.mount / "class").mkdir()
        (made.mount / "class" / "a").write_bytes(b"inline")
        (made.mount / "class" / "b").write_bytes(b"b" * 10_000)
        bmap = tmp_path / "bmap.json"
        assert create.run(str(made.mount), str(bmap), threads=1) == 1
        yield made, bmap


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_sample_without_extents_is_read_as_a_file(inline, gpus, device):
    made, bmap = inline
    catalog = from_directory(made.mount, file_filters="*")
    with BlockReader(catalog, bmap=bmap) as reader:
        if device == "gpu":
            put_on_gpu(reader)
        assert read(reader, np.array([1, 0, 1, 0])) == [b"b" * 10_000, b"inline"] * 2
        (made.mount / "class" / "a").write_bytes(b"Inline")
        with raises_naming(StaleMapError, made.mount / "class" / "a"):
            read(reader, np.array([1, 0]))


def test_a_file_without_extents_that_changes_its_size_is_refused(inline):
    made, bmap = inline
    catalog = from_directory(made.mount, file_filters="*")
    with BlockReader(catalog, bmap=bmap, check=False) as reader:
        for content in (b"in", b"inline and more"):
            (made.mount / "class" / "a").write_bytes(content)
            with pytest.raises(StaleMapError, match="its size was 6"):
                read(reader, np.array([1, 0]))


def test_a_sample_without_extents_needs_the_file_system(inline):
    made, bmap = inline
    missing = r"1 samples can only be read as files.*class/a"
    with unmounted(made):
        with pytest.raises(BackendUnavailable, match=missing):
            from_map(bmap).open(uri=made.image)
        with pytest.warns(MapNotChecked):
            assert from_map(bmap, "b").read(uri=made.image) == [b"b" * 10_000]


def test_a_fifo_behind_a_link_does_not_block(root, tmp_path):
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    os.mkfifo(root / "fifo")
    (root / "class" / "b").symlink_to("../fifo")
    assert create.run(str(root), str(tmp_path / "bmap"), threads=1) == 1
    with BlockReader(from_directory(root, file_filters="*"), bmap=tmp_path / "bmap") as reader:
        assert read(reader, np.array([0])) == [b"bytes"]
        with raises_naming(OSError, root / "class" / "b", "not a regular file"):
            read(reader, np.arange(2))
