"""Devices are given to libxnvme by the names that the kernel has for them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bmap_tools
from dali_storage.backends.xnvme import nodes as _xnvme_nodes
from dali_storage.backends.xnvme.namespace import Namespace
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked
from tests.kit.devices import disk, loop_device
from tests.kit.mapped import NEEDS_ROOT, map_files, unmounted

pytestmark = NEEDS_ROOT


def is_read_right(mapped, uri):
    return mapped.read(XnvmeBlockReader, uri=uri) == mapped.contents


@pytest.fixture
def other(tmp_path):
    """The name of a disk of other blocks than the mapped one."""
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    with loop_device(tmp_path / "other", sector=4096) as node:
        yield os.path.basename(node)


def test_a_disk_is_read_by_links_and_by_nodes_with_other_names(
    xnvme, mapped, ext4, other, tmp_path
):
    (tmp_path / "dev").mkdir()
    for name in ("my-disk", other):
        link = tmp_path / "dev" / name
        link.symlink_to(ext4.device)
        assert is_read_right(mapped, link)
        link.unlink()
        os.mknod(link, os.stat(ext4.device).st_mode, os.stat(ext4.device).st_rdev)
        assert is_read_right(mapped, link)
        link.unlink()


def test_a_disk_that_the_map_names_by_a_link_is_read(xnvme, mapped, ext4, tmp_path):
    link = tmp_path / "0f0e-by-uuid"
    link.symlink_to(ext4.device)
    there, contents = bmap_tools.load(mapped.bmap), mapped.contents
    device = replace(there.device, path=str(link), backing_file=None)
    bmap_tools.save(replace(there, device=device), mapped.bmap)
    with unmounted(ext4), pytest.warns(MapNotChecked):
        assert mapped.read(XnvmeBlockReader) == contents


def test_a_disk_that_has_no_node_of_its_name_is_refused(xnvme, mapped, ext4, monkeypatch):
    number = _xnvme_nodes._number
    for there in (None, "7:99"):

        def moved(node, there=there):
            if node != ext4.device:
                return number(node)
            if there is None:
                raise FileNotFoundError
            return there

        monkeypatch.setattr(_xnvme_nodes, "_number", moved)
        with pytest.raises(BackendUnavailable, match=rf"\(--device {ext4.device}\)"):
            mapped.open(XnvmeBlockReader)


def test_a_partition_of_a_disk_that_may_not_be_read_is_refused(xnvme, tmp_path, monkeypatch):
    with disk(tmp_path, partition=True) as made:
        (made.mount / "class").mkdir()
        (made.mount / "class/a").write_bytes(b"a")
        mapped = map_files(made.mount, tmp_path / "bmap.json")
        assert is_read_right(mapped, made.device)
        really = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: path != made.disk and really(path, mode)
        )
        with pytest.raises(BackendUnavailable, match=f"no permission to read {made.disk}; "):
            mapped.open(XnvmeBlockReader)


@pytest.mark.parametrize(
    ("kib", "usual", "most"),
    [
        ("", 128 << 10, 128 << 10),
        ("4", 4096, 4096),
        ("1280", 1 << 20, 1280 << 10),
        ("2147483647", 1 << 20, 32 << 20),
    ],
)
def test_a_command_reads_as_much_as_the_driver_supports(
    xnvme, root, ext4, tmp_path, monkeypatch,
    kib, usual, most
):  # fmt: skip
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(np.random.default_rng(0).bytes(3 << 20))
    mapped = map_files(root, tmp_path / "bmap.json")
    name = os.path.basename(ext4.device)
    described = tmp_path / "sys" / name
    (described / "queue").mkdir(parents=True)
    (described / "dev").write_text(Path(f"/sys/class/block/{name}/dev").read_text())
    (described / "queue/max_hw_sectors_kb").write_text(f"{kib}\n")
    monkeypatch.setattr(_xnvme_nodes, "_BLOCK_DEVICES", tmp_path / "sys")
    lengths = []
    submit = Namespace.submit

    def watch(namespace, queue, *columns):
        lengths.extend(columns[2].tolist())
        return submit(namespace, queue, *columns)

    monkeypatch.setattr(Namespace, "submit", watch)

    def longest(**options):
        lengths.clear()
        assert mapped.read(XnvmeBlockReader, **options) == mapped.contents
        return max(lengths)

    assert longest() == usual
    longest_extent = int(bmap_tools.load(mapped.bmap).extents[:, 2].max())
    assert longest(max_transfer=most) == min(most, longest_extent)
    with pytest.raises(ValueError, match=rf"max_transfer must be .* at most {most}, the"):
        longest(max_transfer=most + 4096)


def test_a_device_whose_commands_are_shorter_than_a_block_is_refused(xnvme, mapped, monkeypatch):
    monkeypatch.setattr(_xnvme_nodes, "max_transfer", lambda disk: 256)
    with pytest.raises(BackendUnavailable, match="one command reads only 256 bytes") as caught:
        mapped.open(XnvmeBlockReader)
    assert "io_uring" not in str(caught.value)
