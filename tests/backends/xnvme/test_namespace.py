"""Opening devices by libxnvme, on loop devices and images; real NVMe is for tests/nvme_vm."""

import errno
import gc
import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bmap_tools.file_system import SUPERBLOCK_BYTES
from dali_storage.backends.linux import pci
from dali_storage.backends.xnvme import namespace as _namespace
from dali_storage.backends.xnvme.device import Geometry, XnvmeDevice
from dali_storage.backends.xnvme.namespace import Namespace
from dali_storage.backends.xnvme.read_commands import ReadCommands
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.errors import BackendUnavailable, StaleMapError
from dali_storage.testing import read
from dali_storage.testing.probes import require_no_leak
from tests.kit.mapped import NEEDS_ROOT, nothing_stays_open
from tests.kit.process import descriptors, room_for

pytestmark = NEEDS_ROOT


@contextmanager
def refused(mapped, error, message):
    """An error is raised, and neither device nor map stay open."""
    with nothing_stays_open("/dev/loop", mapped.bmap.parent):
        with pytest.raises(error, match=message) as caught:
            yield caught
        gc.collect()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"io": "posix"}, ValueError, "io must be one of io_uring, libaio, emu, thrpool for a bl"),
        ({"io": "io_uring_cmd"}, ValueError, "for a block device, not 'io_uring_cmd'"),
        ({"max_transfer": 1 << 29}, ValueError, "max_transfer must be .* at most \\d+, the larg"),
        ({"uri": "/no/such/device"}, FileNotFoundError, "option uri"),
        ({"uri": "/"}, ValueError, "neither a block device nor an image"),
        ({"uri": "/dev/null"}, ValueError, "not the character device of an NVMe namespace"),
        ({"uri": 5}, TypeError, "uri"),
        ({"uri": "/dev/\0"}, ValueError, "uri"),
        ({"nsid": 2}, ValueError, "nsid 2 is for PCI addresses; the device .* is a namespace"),
    ],
)
def test_options_that_do_not_fit_the_device_are_refused(xnvme, mapped, options, error, message):
    assert XnvmeBlockReader.unavailable() is None
    with refused(mapped, error, message):
        mapped.open(XnvmeBlockReader, **options)


def test_the_superblock_read_by_a_command_is_compared_with_the_map(xnvme, mapped, monkeypatch):
    """libxnvme might have opened another device than the kernel knows by this path."""
    head = bytes(SUPERBLOCK_BYTES)
    monkeypatch.setattr(Namespace, "read", lambda *_: head)
    with pytest.raises(StaleMapError, match="no ext2, ext3, ext4 or XFS file system at byte 0"):
        mapped.open(XnvmeBlockReader)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kind": "zoned"}, ValueError, "is a zoned namespace"),
        ({"kind": "key-value"}, ValueError, "is a key-value namespace"),
        ({"has_metadata": True}, ValueError, "extended LBAs"),
        ({"lba_bytes": 4096}, BackendUnavailable, "blocks of 4096 bytes, the kernel of 512"),
    ],
)
def test_a_namespace_that_cannot_be_read_is_refused(
    xnvme, mapped, monkeypatch, changes, error, message
):
    found = replace(Geometry("conventional", 320 << 20, 512, 1 << 20, False), **changes)
    monkeypatch.setattr(XnvmeDevice, "geometry", lambda _: found)
    with refused(mapped, error, message):
        mapped.open(XnvmeBlockReader)


def test_separate_metadata_is_no_matter_of_block_devices(xnvme, mapped, monkeypatch):
    found = Geometry("conventional", 320 << 20, 512, 1 << 20, False, metadata_bytes=8)
    monkeypatch.setattr(XnvmeDevice, "geometry", lambda _: found)
    mapped.open(XnvmeBlockReader).close()
    monkeypatch.setattr(_namespace, "CHARACTER_DEVICE", _namespace.BLOCK_DEVICE)
    with refused(mapped, ValueError, "has metadata beside its logical blocks"):
        mapped.open(XnvmeBlockReader)


def test_an_implementation_that_is_forbidden_is_named(xnvme, mapped, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(_namespace, "Queue", forbidden)
    message = (
        r"'io_uring' here: .*cannot create 2 queues of depth 128: Operation not permitted; "
        r"the device may support fewer or shallower ones; .*kernel.io_uring_disabled.*`python -m"
    )
    with refused(mapped, BackendUnavailable, message):
        mapped.open(XnvmeBlockReader)


def test_an_image_of_too_long_a_name_is_refused(xnvme, mapped, ext4, tmp_path):
    link = tmp_path / ("d" * 200) / ("e" * 200) / "disk.img"
    link.parent.mkdir(parents=True)
    link.symlink_to(ext4.image)
    with pytest.raises(ValueError, match="longer than libxnvme supports, 383 bytes"):
        mapped.open(XnvmeBlockReader, uri=link)


@pytest.mark.parametrize("left", [1, 2, 3, 4, 5, 8])
def test_a_limit_of_open_files_is_named(xnvme, mapped, left):
    with refused(mapped, OSError, "ulimit -n") as caught, room_for(left):
        mapped.open(XnvmeBlockReader, queues=64)
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"io": "no_such_io"}, ValueError),
        ({"queues": 3}, StaleMapError),  # the device and all queues are open
        ({"max_transfer": 1 << 29}, ValueError),  # and the file system is located
    ],
)
def test_a_failed_opening_leaves_nothing_behind(xnvme, mapped, monkeypatch, options, error):
    def fail(openings):
        for _ in range(openings):
            with pytest.raises(error):
                mapped.open(XnvmeBlockReader, queue_depth=8, **options)

    head = bytes(SUPERBLOCK_BYTES)
    if error is StaleMapError:
        monkeypatch.setattr(Namespace, "read", lambda *_: head)
    require_no_leak(lambda: fail(100))


def test_everything_is_open_for_reading_only(io, mapped, ext4, monkeypatch):
    flags = {}
    submit = ReadCommands.submit

    def watch(reads, indices, contexts):
        codes = submit(reads, indices, contexts)
        for fd, path in descriptors():
            if path == os.path.realpath(uri) or path.startswith(f"{ext4.mount}/"):
                text = Path(f"/proc/self/fdinfo/{fd}").read_text()
                flags.setdefault(path, set()).add(int(text.split("flags:")[1].split()[0], 8))
        return codes

    monkeypatch.setattr(ReadCommands, "submit", watch)
    for uri in (ext4.device, ext4.image):
        with mapped.open(XnvmeBlockReader, uri=uri, io=io, queue_depth=4) as reader:
            flags.clear()
            assert read(reader, np.arange(3)) == mapped.contents
            if uri == ext4.device:
                geometry = reader._device.device.geometry()
                found = geometry.kind, geometry.lba_bytes, geometry.size
                assert found == ("conventional", 512, 320 << 20)
        found = flags[os.path.realpath(uri)]
        assert all(one & os.O_DIRECT for one in found)
        assert {one & os.O_ACCMODE for one in set.union(*flags.values())} == {os.O_RDONLY}


# PCI addresses, as far as there is none


def test_a_pci_address_needs_the_main_branch_and_has_no_choice_of_io(xnvme, mapped):
    kind, message = OSError, "lspci -D"  # there is no such controller
    if xnvme.version != "main":
        kind, message = BackendUnavailable, r"0\.7\.5 .* cannot read from a PCI address; use a libx"
    with pytest.raises(kind, match=message):
        mapped.open(XnvmeBlockReader, uri="0000:ff:1f.7")
    if xnvme.version == "main":
        with pytest.raises(ValueError, match="io must be left out for a PCI address"):
            mapped.open(XnvmeBlockReader, uri="0000:ff:1f.7", io="libaio")


def test_a_controller_that_cannot_be_opened_says_what_may_be_missing(xnvme, mapped, monkeypatch):
    if xnvme.version != "main":
        pytest.skip("only libxnvme's main branch reads from PCI addresses")

    def refuse(*_, **__):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(_namespace, "XnvmeDevice", refuse)
    monkeypatch.setattr(pci, "require_user_space_driver", lambda _: None)
    for needs, remedy in ((["an IOMMU", "root"], "it needs an IOMMU; root"), ([], "another proc")):
        monkeypatch.setattr(pci, "needs", lambda _, needs=needs: needs)
        with pytest.raises(BackendUnavailable, match=f"Cannot allocate memory; {remedy}"):
            mapped.open(XnvmeBlockReader, uri="0000:ff:1f.7")
