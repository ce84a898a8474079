"""Devices and images opened with O_DIRECT, on loop devices."""

import errno
import os

import pytest

from dali_storage.backends.linux.storage import open_direct
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import loop_device
from tests.kit.mapped import nothing_stays_open
from tests.kit.process import descriptors

SIZE = 1 << 20


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "image"
    path.write_bytes(os.urandom(SIZE))
    return path


@pytest.mark.parametrize("sector", [512, 4096])
def test_a_block_device_is_described_and_read(image, sector):
    with loop_device(image, sector=sector) as node:
        device = open_direct(node)
        storage = device.storage
        assert storage.path == node
        assert storage.aliases == (node, str(image))
        assert (storage.size, storage.offset) == (SIZE, 0)
        assert (storage.alignment, storage.logical_block_size) == (sector, sector)
        assert device.read(4096, 8192) == image.read_bytes()[4096 : 3 * 4096]
        assert device.read(SIZE - 4096, 8192) == image.read_bytes()[-4096:]
        device.close()
        assert not descriptors(node)


def test_an_image_is_described_and_read(image):
    opened = open_direct(str(image))
    storage = opened.storage
    assert (storage.path, storage.aliases, storage.size) == (str(image), (str(image),), SIZE)
    assert storage.logical_block_size is None
    assert storage.alignment in (512, 1024, 2048, 4096)
    assert opened.read(storage.alignment, 4096) == image.read_bytes()[storage.alignment :][:4096]
    opened.close()


def test_a_read_that_fails_names_the_device(image):
    opened = open_direct(str(image))
    with raises_naming(OSError, image) as caught:
        opened.read(1, 4096)
    assert caught.value.errno == errno.EINVAL
    opened.close()


def test_a_file_system_without_direct_io_is_unavailable():
    with pytest.raises(BackendUnavailable, match="without O_DIRECT") as caught:
        open_direct("/proc/version")
    assert "losetup --find --show --read-only /proc/version" in caught.value.remedy


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/no/such/device", FileNotFoundError, "option uri"),
        ("/", ValueError, "neither a block device nor an image file$"),
        ("/dev/null", ValueError, "NVMe character devices are for xnvme-block"),
        ("/dev/\0", ValueError, "uri '/dev/"),
    ],
)
def test_a_path_that_is_not_a_device_or_an_image_is_refused(path, error, message):
    with nothing_stays_open("/dev/null"), pytest.raises(error, match=message):
        open_direct(path)
