"""Controllers are removed while xnvme-block reads them, one for each way."""

import contextlib
import dataclasses
import errno
import os

import numpy as np
import pytest

from dali_storage.backends.xnvme import namespace
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, vram, ways
from tests.nvme_vm.guest.hostile import plant
from tests.nvme_vm.guest.removal import failure_when_taken_out

TIMEOUT = 15.0  # seconds; users wait longer for a controller that does not answer


def prepare(number, directory):
    """Put files on a disk, and map them."""
    node = controllers.disk(plan.TAKEN_OUT[number])
    make_file_system("ext4", node)
    with mounted(node, directory / "mnt"):
        catalog = plant(directory / "mnt", number)
        return catalog, make_map(catalog.root, directory / "bmap.json")


@pytest.mark.parametrize(
    ("number", "node"), [(0, controllers.disk), (1, controllers.character_device)]
)
def test_a_removed_disk_is_an_error(tmp_path, number, node):
    catalog, bmap = prepare(number, tmp_path)
    reader = XnvmeBlockReader(catalog, bmap=bmap, uri=node(plan.TAKEN_OUT[number]))
    error = failure_when_taken_out(reader, catalog, number)
    assert error.errno in (errno.EIO, errno.ENODEV)
    assert error.filename in [os.fsdecode(path) for path in catalog.paths(np.arange(len(catalog)))]


@pytest.mark.parametrize(
    ("number", "memory"), [(2, contextlib.nullcontext), (3, vram.in_use)], ids=["host", "gpu"]
)
@ways.ONLY_MAIN
def test_a_removed_controller_at_a_pci_address_is_an_error(tmp_path, monkeypatch, number, memory):
    pci = dataclasses.replace(namespace.PCI_ADDRESS, timeout_s=TIMEOUT)
    monkeypatch.setattr(namespace, "PCI_ADDRESS", pci)
    catalog, bmap = prepare(number, tmp_path)
    function = controllers.address(plan.TAKEN_OUT[number])
    controllers.bind(function, "uio_pci_generic")
    with memory():
        reader = XnvmeBlockReader(catalog, bmap=bmap, uri=function)
        error = failure_when_taken_out(reader, catalog, number)
    assert error.errno in (errno.ETIMEDOUT, errno.ENODEV)  # in the middle of a batch, or not
    assert error.filename == function
