"""Which device or image holds a mapped file system: compared with devices that tests describe."""

import gc
import os
import uuid
import weakref
from dataclasses import asdict, dataclass, replace

import numpy as np
import pytest

from bmap_tools.extent_map import Device
from dali_storage.backends.block import BlockReader
from dali_storage.backends.extents.device import locate, open_mapped
from dali_storage.backends.extents.map import LoadedMap
from dali_storage.backends.linux.storage import Storage
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked, StaleMapError
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.bmap.documents import UUID, document, map_of
from tests.kit.devices import disk, loop_device, mounted, run
from tests.kit.layouts import make_map
from tests.kit.mapped import Mapped, from_map, unmounted

DISK_SIZE, SIZE, START = 100 << 20, 90 << 20, 1 << 20
PARTITION = Device(
    path="/dev/nvme0n1p1",
    size=SIZE,
    logical_block_size=512,
    disk="/dev/nvme0n1",
    disk_size=DISK_SIZE,
    start=START,
    serial="S4EWNX0R",
    wwid="eui.0102030405060708",
    backing_file=None,
)


def loaded(device=PARTITION, physical=(8192,)):
    """The map of a file whose extents are blocks, in a file system on `device`."""
    extents = [[4096 * row, None if at < 0 else at, 4096] for row, at in enumerate(physical)]
    plain = document() | {"device": asdict(device), "root": "/root", "directories": []}
    plain |= {"files": [["a", 4096 * len(physical), 0, 0, 0, extents]]}
    return LoadedMap(map_of(plain), "renew the map: create it again")


@dataclass
class FakeSource:
    """A device with a file system at one offset."""

    storage: Storage
    start: int = 0
    uuid: str = UUID
    closed: int = 0

    def read(self, offset, nbytes):
        content = bytearray(nbytes)
        if offset == self.start:  # the superblock of ext4
            content[1024 + 0x38 : 1024 + 0x3A] = b"\x53\xef"
            content[1024 + 0x68 : 1024 + 0x78] = uuid.UUID(self.uuid).bytes
        return bytes(content)

    def close(self):
        self.closed += 1


def storage(size, **facts):
    known = {"path": "/dev/x", "aliases": ("/dev/x",), "alignment": 512}
    return Storage(**(known | {"size": size} | facts))


THE_PARTITION = storage(
    SIZE, logical_block_size=512, serial="S4EWNX0R", wwids=("eui.0102030405060708",)
)
THE_DISK = replace(THE_PARTITION, size=DISK_SIZE)


NAMED_BY_UUID = "uuid.ad0bc0f5-7ef2-4ad5-8c4f-3a9ba4ee2ccb"
OF_THE_KERNEL = replace(THE_PARTITION, may_have_uuid=True)  # it alone knows the controller's names
OTHER_UUID = "00000000-0000-4000-8000-000000000001"
ODD_START = replace(PARTITION, start=START + 512)


@pytest.mark.parametrize(
    ("found", "start", "mapped"),
    [
        (THE_PARTITION, 0, loaded()),
        (THE_DISK, START, loaded()),
        (replace(THE_PARTITION, offset=5 << 20), 5 << 20, loaded()),  # read by its disk
        (storage(SIZE), 0, loaded()),  # an image, of which nothing else is known
        (storage(DISK_SIZE), START, loaded()),
        (storage(DISK_SIZE + 511), START, loaded()),  # an odd end is not a block
        (storage(SIZE, alignment=4096), 0, loaded(physical=(8192, -1))),  # -1: unwritten
        (replace(THE_PARTITION, wwids=("eui.00", "eui.0102030405060708")), 0, loaded()),
        (replace(THE_PARTITION, serial=None, wwids=()), 0, loaded()),
        *(
            (OF_THE_KERNEL, 0, loaded(replace(PARTITION, wwid=wwid, serial=serial)))
            for wwid in (None, NAMED_BY_UUID)
            for serial in (None, "S4EWNX0R")
        ),
    ],
)
def test_the_mapped_device_is_located(found, start, mapped):
    assert locate(FakeSource(found, start), mapped) == start


@pytest.mark.parametrize(
    ("source", "mapped", "message"),
    [
        (FakeSource(storage(SIZE - 512)), loaded(),
         f"it has {SIZE - 512} bytes, the mapped device {SIZE}, its disk"),
        (FakeSource(replace(THE_PARTITION, logical_block_size=4096)), loaded(),
         "its logical_block_size is 4096 and was 512"),
        (FakeSource(replace(THE_PARTITION, serial="S4EWNX0")), loaded(),
         "its serial is S4EWNX0 and was S4EWNX0R"),
        (FakeSource(replace(THE_PARTITION, wwids=("eui.01", "nvme.2"))), loaded(),
         "its wwid is eui.01 or nvme.2 and was eui.0102030405060708"),
        (FakeSource(THE_PARTITION), loaded(replace(PARTITION, wwid=NAMED_BY_UUID)),
         rf"and was {NAMED_BY_UUID}"),
        (FakeSource(THE_PARTITION, uuid=OTHER_UUID), loaded(),
         f"its file system is {OTHER_UUID}, the mapped one is {UUID}"),
        (FakeSource(THE_DISK, start=0), loaded(), f"no ext2, .* at byte {START}"),
    ],
)  # fmt: skip
def test_another_device_is_refused(source, mapped, message):
    with pytest.raises(StaleMapError, match=message) as caught:
        locate(source, mapped)
    assert caught.value.filename == "/dev/x"
    assert "this is not the mapped device: " in str(caught.value)
    assert str(caught.value).count("renew the map: create it again") == 1


@pytest.mark.parametrize(("device", "physical"), [(PARTITION, (8192, 512)), (ODD_START, (8192,))])
def test_files_that_are_not_aligned_to_the_blocks_of_an_image_are_refused(device, physical):
    image = storage(DISK_SIZE, alignment=4096)
    with pytest.raises(BackendUnavailable, match=r"blocks of 4096 bytes.*losetup --find --show"):
        locate(FakeSource(image, device.start), loaded(device, physical))


def test_a_refused_device_is_closed_and_the_accepted_one_is_not(tmp_path):
    right, wrong = FakeSource(THE_PARTITION), FakeSource(storage(4096))
    assert open_mapped("/dev/x", loaded(), bytes(tmp_path), lambda _: right) == (right, 0)
    with pytest.raises(StaleMapError):
        open_mapped("/dev/x", loaded(), bytes(tmp_path), lambda _: wrong)
    assert (right.closed, wrong.closed) == (0, 1)


def test_the_first_likely_place_that_holds_the_file_system_is_taken(tmp_path):
    named, behind = tmp_path / "loop9", tmp_path / "disk.img"
    for path in (named, behind):
        path.touch()
    device = replace(PARTITION, path=str(named), backing_file=str(behind))
    sources = {str(named): FakeSource(storage(4096)), str(behind): FakeSource(THE_PARTITION)}
    opened, start = open_mapped(None, loaded(device), bytes(tmp_path), sources.__getitem__)
    assert (opened, start) == (sources[str(behind)], 0)
    assert sources[str(named)].closed == 1


def test_the_error_of_the_first_place_is_raised_if_none_is_right(tmp_path):
    (tmp_path / "image").touch()
    device = replace(PARTITION, path=str(tmp_path / "image"), backing_file="/no/such/file")
    with pytest.raises(
        StaleMapError, match=r"it has 4096 bytes.*; give the mapped device as uri, or"
    ):
        open_mapped(None, loaded(device), bytes(tmp_path), lambda _: FakeSource(storage(4096)))


def test_the_error_of_a_refused_device_does_not_keep_it_alive(tmp_path):
    """A traceback keeps what a device was reading to, and that keeps a device of libxnvme open."""
    sources = []

    def opener(path):
        source = FakeSource(storage(4096))
        sources.append(weakref.ref(source))
        return source

    gc.disable()  # frees cycles, at some time
    try:
        with pytest.raises(StaleMapError, match=r"it has 4096 bytes"):
            open_mapped("/dev/x", loaded(), bytes(tmp_path), opener)
        assert [source() for source in sources] == [None]
    finally:
        gc.enable()


def test_a_uri_that_is_not_a_path_is_refused(tmp_path):
    with pytest.raises(TypeError, match="uri must be the path of a device or an image, not 5"):
        open_mapped(5, loaded(), bytes(tmp_path), lambda _: FakeSource(THE_PARTITION))


# Real devices


def test_a_copy_of_the_mounted_device_is_refused(mapped, ext4, tmp_path):
    run("cp", "--sparse=always", str(ext4.image), str(tmp_path / "copy"))
    with pytest.raises(StaleMapError, match=r"is mounted from /dev/loop.*, not from .*copy"):
        mapped.open(uri=tmp_path / "copy")


def test_another_directory_with_the_same_names_is_refused(mapped, root, tmp_path, ext4):
    for copy, options, message in (
        (tmp_path / "copy", {"uri": ext4.device}, "is on another file system"),
        (root.with_name(root.name + "-twin"), {"check": False}, "its inode was"),
    ):
        run("cp", "-a", str(root), str(copy))
        with pytest.raises(StaleMapError, match=message):
            BlockReader(from_directory(copy, file_filters="*"), bmap=mapped.bmap, **options)


def test_a_device_with_another_name_is_found(tmp_path):
    with disk(tmp_path, "ext4") as made:
        (made.mount / "class").mkdir()
        (made.mount / "class" / "a").write_bytes(b"bytes")
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        with unmounted(made):
            # The old name is that of a copy now; the image has another, and is mounted elsewhere.
            run("losetup", "--detach", made.device)
            run("cp", "--sparse=always", str(made.image), str(tmp_path / "copy"))
            run("losetup", "--sector-size", "512", made.device, str(tmp_path / "copy"))
            with loop_device(made.image) as device, mounted(device, tmp_path / "elsewhere"):
                assert device != made.device
                catalog = from_directory(tmp_path / "elsewhere", file_filters="*")
                assert Mapped(catalog, bmap).read() == [b"bytes"]
            with pytest.warns(MapNotChecked):
                from_map(bmap).open().close()


def test_an_image_by_a_relative_path_is_read(mapped, ext4):
    assert mapped.read(uri=os.path.relpath(ext4.image)) == mapped.contents


def test_a_file_system_that_is_mounted_elsewhere_is_read(mapped, ext4, root, tmp_path):
    whole = make_map(ext4.mount, tmp_path / "all.json")
    with mounted(ext4.device, tmp_path / "elsewhere"):
        catalog = from_directory(tmp_path / "elsewhere" / root.name, file_filters="*")
        assert Mapped(catalog, whole).read() == mapped.contents
        with Mapped(catalog, mapped.bmap).open() as reader:
            assert read(reader, np.arange(3)) == mapped.contents
            os.utime(catalog.path(1))
            with raises_naming(StaleMapError, catalog.path(1)):
                read(reader, np.arange(3))
