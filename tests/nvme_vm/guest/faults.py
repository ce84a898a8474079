"""The backend block on a disk with bad sectors, and on a copy of the mapped disk."""

import errno
import json
import re

import numpy as np
import pytest

from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import StaleMapError
from dali_storage.samples.discovery import from_tree
from dali_storage.testing import read
from tests.kit.devices import run
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers

BATCH = 4
BMAP = controllers.DIRECTORY / plan.BMAP


@pytest.fixture
def catalog():
    return from_tree(BlockReader.tree(bmap=BMAP), file_filters="*.bin")


@pytest.fixture
def faults(catalog):
    return known_faults(catalog)


def known_faults(catalog):
    """The faults of the disk, each with its sample."""
    known = json.loads((controllers.DIRECTORY / plan.FAULTS).read_text())
    names = [catalog.name(sample).decode() for sample in range(len(catalog))]
    return {kind: {**fault, "sample": names.index(fault["name"])} for kind, fault in known.items()}


def contents(catalog, samples):
    """The original contents of samples."""
    files = controllers.DIRECTORY / plan.FILES
    return [(files / catalog.name(sample).decode()).read_bytes() for sample in samples]


@pytest.mark.usefixtures("driver_without_retries")
def test_an_epoch_with_a_bad_sector_and_one_that_fails_once(catalog, faults):
    with BlockReader(catalog, bmap=BMAP, uri=controllers.disk(plan.MAPPED)) as reader:
        error = read_epoch(reader, catalog, np.arange(len(catalog)), faults["bad"]["sample"])
    assert has_failed(faults["once"]["sector"])
    assert error.errno == errno.ENODATA  # the kernel's word for a medium error
    require_named(error, faults["bad"])


def read_epoch(reader, catalog, epoch, bad):
    """Read an epoch whose samples must all be right but one; return the error of that one."""
    for first in range(0, len(epoch), BATCH):
        samples = epoch[first : first + BATCH]
        if bad in samples:
            error = failure(reader, samples)
            samples = samples[samples != bad]
        assert read(reader, samples) == contents(catalog, samples)
    return error


def failure(reader, samples):
    """The error of reading samples, without its traceback, which keeps memory alive."""
    with pytest.raises(OSError) as caught:
        read(reader, samples)
    return caught.value.with_traceback(None)


def has_failed(sector):
    """Whether the driver has logged the failure of a command that covers a sector."""
    failed = re.findall(r"@ LBA (\d+), (\d+) blocks, I/O Error", run("dmesg"))
    return any(int(first) <= sector < int(first) + int(length) for first, length in failed)


def require_named(error, fault):
    """An error names the sample, and the read and the extent with the bad sector."""
    assert error.filename == f"{plan.MOUNT}/{plan.FILES}/{fault['name']}"
    match = re.search(
        r"(\d+) bytes at LBA (\d+) of .*, logical (\d+), physical (\d+), length (\d+)\)", str(error)
    )
    assert match is not None, error
    length, lba, logical, physical, extent_length = map(int, match.groups())
    position = fault["sector"] * 512
    assert lba * 512 <= position < lba * 512 + length
    assert physical <= position < physical + extent_length
    assert position - physical + logical == fault["offset"]


def test_a_disk_with_the_same_bytes_and_another_serial_number_is_refused(catalog):
    with pytest.raises(StaleMapError, match=f"its serial is {plan.FOREIGN} and was {plan.MAPPED}"):
        BlockReader(catalog, bmap=BMAP, uri=controllers.disk(plan.FOREIGN))
