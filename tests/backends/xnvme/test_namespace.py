"""Opening devices by libxnvme, on loop devices and images; real NVMe is for tests/nvme_vm."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bmap_tools.file_system import SUPERBLOCK_BYTES
from dali_storage.backends.linux import pci
from dali_storage.backends.xnvme import namespace as _namespace
from dali_storage.backends.xnvme.device import Geometry, XnvmeDevice
from dali_storage.backends.xnvme.library import Library
from dali_storage.backends.xnvme.namespace import Namespace
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme.read_commands import ReadCommands
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, StaleMapError
from dali_storage.testing import nothing_is_left, read
from tests.kit.devices import Disk, disk, loop_device
from tests.kit.layouts import contents_of
from tests.kit.mapped import NEEDS_ROOT
from tests.kit.process import open_files

pytestmark = NEEDS_ROOT


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"io": "posix"}, ValueError, "io must be one of io_uring, libaio, emu, thrpool for a bl"),
        ({"io": "io_uring_cmd"}, ValueError, "for a block device, not 'io_uring_cmd'"),
        ({"max_transfer": 1 << 29}, ValueError, "max_transfer must be .* at most \\d+, the bytes"),
        ({"uri": "/no/such/device"}, FileNotFoundError, "option uri"),
        ({"uri": "/"}, ValueError, "neither a block device nor an image"),
        ({"uri": "/dev/null"}, ValueError, "not the character device of an NVMe namespace"),
        ({"uri": 5}, TypeError, "uri"),
        ({"uri": "/dev/\0"}, ValueError, "uri"),
        ({"nsid": 2}, ValueError, "nsid 2 is for PCI addresses; the device .* is a namespace"),
    ],
)
def test_options_that_do_not_fit_the_device_are_refused(
    xnvme: Library,
    mapped: tuple[Catalog, Path],
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    assert XnvmeBlockReader.unavailable() is None
    before = open_files()
    with pytest.raises(error, match=message):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], **options)
    assert open_files() <= before


def test_another_file_system_is_refused(
    xnvme: Library, mapped: tuple[Catalog, Path], tmp_path: Path
) -> None:
    with disk(tmp_path, "ext4") as other:
        for uri in (other.device, other.image):
            with pytest.raises(StaleMapError, match="not the mapped device: its file system is"):
                XnvmeBlockReader(mapped[0], bmap=mapped[1], uri=uri)


def test_the_superblock_read_by_a_command_is_compared_with_the_map(
    xnvme: Library, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """libxnvme might have opened another device than the kernel knows by this path."""
    head = bytes(SUPERBLOCK_BYTES)
    monkeypatch.setattr(Namespace, "read", lambda *_: head)
    with pytest.raises(StaleMapError, match="no ext2, ext3, ext4 or XFS file system at byte 0"):
        XnvmeBlockReader(mapped[0], bmap=mapped[1])


def test_a_map_of_512_byte_blocks_is_refused_on_a_device_of_4096(
    xnvme: Library, mapped: tuple[Catalog, Path], ext4: Disk
) -> None:
    with (
        loop_device(ext4.image, sector=4096) as uri,
        pytest.raises(StaleMapError, match="its logical_block_size is 4096 and was 512"),
    ):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], uri=uri)


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
    xnvme: Library,
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    found = {
        "kind": "conventional",
        "size": 320 << 20,
        "lba_bytes": 512,
        "has_metadata": False,
        "max_transfer": 1 << 20,
    }
    monkeypatch.setattr(XnvmeDevice, "geometry", lambda _: Geometry(**{**found, **changes}))
    before = open_files()
    with pytest.raises(error, match=message):
        XnvmeBlockReader(mapped[0], bmap=mapped[1])
    assert open_files() <= before


def test_separate_metadata_is_no_matter_of_block_devices(
    xnvme: Library, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Geometry("conventional", 320 << 20, 512, 1 << 20, False, metadata_bytes=8)
    monkeypatch.setattr(XnvmeDevice, "geometry", lambda _: found)
    XnvmeBlockReader(mapped[0], bmap=mapped[1]).close()
    monkeypatch.setattr(_namespace, "CHARACTER_DEVICE", _namespace.BLOCK_DEVICE)
    before = open_files()
    with pytest.raises(ValueError, match="has metadata beside its logical blocks"):
        XnvmeBlockReader(mapped[0], bmap=mapped[1])
    assert open_files() <= before


def test_an_implementation_that_is_forbidden_is_named(
    xnvme: Library, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> Queue:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(_namespace, "Queue", forbidden)
    before = open_files()
    with pytest.raises(
        BackendUnavailable,
        match=r"'io_uring' here: .*cannot create 2 queues of depth 128: Operation not permitted; "
        r"the device may support fewer or shallower ones; .*kernel.io_uring_disabled.*`python -m",
    ):
        XnvmeBlockReader(mapped[0], bmap=mapped[1])
    assert open_files() <= before


def test_an_image_of_too_long_a_name_is_refused(
    xnvme: Library, mapped: tuple[Catalog, Path], ext4: Disk, tmp_path: Path
) -> None:
    link = tmp_path / ("d" * 200) / ("e" * 200) / "disk.img"
    link.parent.mkdir(parents=True)
    link.symlink_to(ext4.image)
    with pytest.raises(ValueError, match="longer than libxnvme supports, 383 bytes"):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], uri=link)


@pytest.mark.parametrize("fewer", [8, 9, 10, 11, 12, 16])
def test_a_limit_of_open_files_is_named(
    xnvme: Library, mapped: tuple[Catalog, Path], fewer: int
) -> None:
    before = open_files()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + fewer - 8, limits[1]))
    try:
        with pytest.raises(OSError, match="ulimit -n") as caught:
            XnvmeBlockReader(mapped[0], bmap=mapped[1], queues=64)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE
    assert open_files() <= before


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"io": "no_such_io"}, ValueError),
        ({"queues": 3}, StaleMapError),  # the device and all queues are open
        ({"max_transfer": 1 << 29}, ValueError),  # and the file system is located
    ],
)
def test_a_failed_opening_leaves_nothing_behind(
    xnvme: Library,
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[Exception],
) -> None:
    def fail(openings: int) -> None:
        for _ in range(openings):
            with pytest.raises(error):
                XnvmeBlockReader(mapped[0], bmap=mapped[1], queue_depth=8, **options)

    head = bytes(SUPERBLOCK_BYTES)
    if error is StaleMapError:
        monkeypatch.setattr(Namespace, "read", lambda *_: head)
    fail(3)
    with nothing_is_left():
        fail(100)


def test_everything_is_open_for_reading_only(
    io: str, mapped: tuple[Catalog, Path], ext4: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, set[int]] = {}
    submit = ReadCommands.submit

    def watch(reads: ReadCommands, indices: list[int], contexts: list[int]) -> list[int]:
        codes = submit(reads, indices, contexts)
        for fd in os.listdir("/proc/self/fd"):
            path = os.path.realpath(f"/proc/self/fd/{fd}")
            if path == os.path.realpath(uri) or path.startswith(f"{ext4.mount}/"):
                text = Path(f"/proc/self/fdinfo/{fd}").read_text()
                flags.setdefault(path, set()).add(int(text.split("flags:")[1].split()[0], 8))
        return codes

    monkeypatch.setattr(ReadCommands, "submit", watch)
    for uri in (ext4.device, ext4.image):
        with XnvmeBlockReader(mapped[0], bmap=mapped[1], uri=uri, io=io, queue_depth=4) as reader:
            flags.clear()
            assert read(reader, np.arange(3)) == contents_of(mapped[0])
        found = flags[os.path.realpath(uri)]
        assert all(one & os.O_DIRECT for one in found)
        assert {one & os.O_ACCMODE for one in set.union(*flags.values())} == {os.O_RDONLY}


# PCI addresses, as far as there is none


def test_a_pci_address_needs_the_main_branch(xnvme: Library, mapped: tuple[Catalog, Path]) -> None:
    kind, message = OSError, "lspci -D"  # there is no such controller
    if xnvme.version != "main":
        kind, message = BackendUnavailable, r"0\.7\.5 .* cannot read from a PCI address; use a libx"
    with pytest.raises(kind, match=message):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], uri="0000:ff:1f.7")


def test_a_controller_that_cannot_be_opened_says_what_may_be_missing(
    xnvme: Library, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if xnvme.version != "main":
        pytest.skip("only libxnvme's main branch reads from PCI addresses")

    def refuse(*_: Any, **__: Any) -> XnvmeDevice:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(_namespace, "XnvmeDevice", refuse)
    monkeypatch.setattr(pci, "require_user_space_driver", lambda _: None)
    for needs, remedy in ((["an IOMMU", "root"], "it needs an IOMMU; root"), ([], "another proc")):
        monkeypatch.setattr(pci, "needs", lambda _, needs=needs: needs)
        with pytest.raises(BackendUnavailable, match=f"Cannot allocate memory; {remedy}"):
            XnvmeBlockReader(mapped[0], bmap=mapped[1], uri="0000:ff:1f.7")


def test_a_pci_address_has_no_choice_of_io(xnvme: Library, mapped: tuple[Catalog, Path]) -> None:
    if xnvme.version != "main":
        pytest.skip("only libxnvme's main branch reads from PCI addresses")
    with pytest.raises(ValueError, match="io must be left out for a PCI address, not 'libaio'"):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], uri="0000:ff:1f.7", io="libaio")
