"""What readers promise, on a disk whose controller another driver has meanwhile."""

import numpy as np
import pytest

from dali_storage.samples.discovery import from_directory
from dali_storage.testing import SIZES, SnapshotReaderTests
from dali_storage.testing.packing import packed_contents, write_packed
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import make_map
from tests.nvme_vm.guest import controllers, ways

CONTENTS = [np.random.default_rng(size).bytes(size) for size in SIZES]


class DiskPromises(SnapshotReaderTests):
    """Promises of a reader of files on the disk `serial`, which it is given in this `way`.

    The file system is not mounted.

    Subclasses open the reader of `catalog` and `bmap` at the address `function`.
    """

    packings = ("files", "ranges")
    serial: str
    way: ways.Way

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def disk(cls, tmp_path_factory):
        directory = tmp_path_factory.mktemp("promises")
        node, mount = controllers.blank(controllers.disk(cls.serial)), directory / "mnt"
        make_file_system("ext4", node)
        with mounted(node, mount):
            (mount / "class").mkdir()
            for index, content in enumerate(CONTENTS):
                (mount / "class" / f"{index:03d}").write_bytes(content)
            files = from_directory(mount, file_filters="*")
            (mount / "packed" / "class").mkdir(parents=True)
            cls.catalogs = {"files": files, "ranges": write_packed(mount / "packed")}
            cls.bmap = make_map(mount, directory / "bmap.json")
        for folder in ("class", "packed/class"):
            (mount / folder).mkdir(parents=True)
        with cls.way(cls.serial) as cls.function:
            yield

    @pytest.fixture
    def contents(self, packing):
        return CONTENTS if packing == "files" else packed_contents()

    @pytest.fixture
    def catalog(self, packing):
        return self.catalogs[packing]
