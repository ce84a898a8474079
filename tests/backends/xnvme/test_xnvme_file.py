import errno
import os
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends.xnvme import file_queue
from dali_storage.backends.xnvme.file_queue import IOS, FileQueue
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract.errors import BackendUnavailable, SampleSizeChanged
from dali_storage.samples.discovery import from_files
from dali_storage.testing import RangeTests, ReaderTests, fill, make_known_batch, read
from dali_storage.testing.probes import raises_naming, require_no_leak
from tests.kit.file_reading import FileTests, of_reading
from tests.kit.process import room_for
from tests.kit.xnvme import offers, require_io


class XnvmeFileTests(RangeTests, ReaderTests):
    options: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def library(self, xnvme):
        require_io(xnvme, self.options["io"])

    def open(self, catalog):
        return XnvmeFileReader(catalog, **self.options)


class TestIoUring(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring"}
    batches = 5_000
    openings = 500


@of_reading
class TestIoUringDirect(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring", "direct": True}


@of_reading
class TestIoUringOneAtATime(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring", "queue_depth": 1, "lanes": 1}


@of_reading
class TestLibaio(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "libaio"}
    openings = 10  # the kernel takes 33 ms to end an AIO context


@of_reading
class TestLibaioDirect(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {
        "io": "libaio",
        "direct": True,
        "queue_depth": 2,
        "lanes": 2,
    }


@of_reading
class TestEmu(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "emu"}
    openings = 50


@of_reading
class TestThrpool(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "thrpool", "queue_depth": 4, "lanes": 2}
    openings = 50


@pytest.mark.parametrize("io", ["emu", "thrpool"])
def test_an_io_without_direct_io_is_refused(io):
    with pytest.raises(ValueError, match="direct needs io='io_uring' or 'libaio'"):
        XnvmeFileReader(from_files(["x"]), direct=True, io=io)


def test_an_io_that_is_not_offered_is_unavailable_and_never_replaced(xnvme, monkeypatch):
    offered = [io for io in IOS if offers(xnvme, io)]
    assert XnvmeFileReader.unavailable() is None or "io_uring" not in offered
    others = [io for io in offered if io != "io_uring"]

    def forbidden(device, depth):
        if device.io == "io_uring":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return Queue(device, depth)

    monkeypatch.setattr(file_queue, "Queue", forbidden)
    with pytest.raises(BackendUnavailable, match="not offer the io 'io_uring' here") as caught:
        XnvmeFileReader(from_files(["x"]))
    assert "kernel.io_uring_disabled" in caught.value.remedy
    assert "python -m dali_storage" in caught.value.remedy
    assert xnvme.path in caught.value.reason
    unavailable = XnvmeFileReader.unavailable()
    assert unavailable is not None
    works = ", ".join(map(repr, others)) or "no other"
    assert unavailable.reason == f"{caught.value.reason}; it offers {works}"
    assert unavailable.remedy == caught.value.remedy
    require_no_leak(XnvmeFileReader.unavailable)


def test_a_limit_of_open_files_that_is_too_low_is_named(xnvme):
    with pytest.raises(OSError, match="ulimit -n") as caught, room_for(20):
        XnvmeFileReader(from_files(["x"]), io="emu", queue_depth=2048)
    assert caught.value.errno == errno.EMFILE


class TestFiles(FileTests):
    backend = XnvmeFileReader
    ways: ClassVar[list[dict[str, Any]]] = [
        *({"io": io, "queue_depth": 16} for io in IOS),
        *({"io": io, "queue_depth": 4, "direct": True} for io in ("io_uring", "libaio")),
    ]
    ways_of_large = ways[-2:-1]

    @pytest.fixture(autouse=True)
    def library(self, xnvme):
        self.xnvme = xnvme

    def open(self, catalog, **options):
        require_io(self.xnvme, options.get("io", IOS[0]))
        return super().open(catalog, **options)


def test_a_fifo_is_named_and_not_waited_for(io, tmp_path):
    (tmp_path / "file").write_bytes(b"bytes")
    with XnvmeFileReader(from_files([str(tmp_path / "file")]), io=io) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        with raises_naming(OSError, tmp_path / "file", "not a regular file"):
            fill(reader, batch)


@pytest.mark.parametrize("left", [0, 1, 4096, 5000])
def test_a_file_that_shrinks_under_the_read_is_no_error_and_no_sample(
    io, tmp_path, left, monkeypatch
):
    (tmp_path / "file").write_bytes(bytes(9999))
    (tmp_path / "other").write_bytes(b"other")
    catalog = from_files([str(tmp_path / "file"), str(tmp_path / "other")])
    with XnvmeFileReader(catalog, io=io, lanes=1) as reader:
        batch = make_known_batch(reader, np.array([0, 1]))
        with monkeypatch.context() as patch:
            patch.setattr(reader._files, "sizes_now", lambda *_: np.array([9999, 5]))
            os.truncate(tmp_path / "file", left)
            # An errno that is left over from something else must not be taken for the file's.
            with pytest.raises(FileNotFoundError):
                os.stat(tmp_path / "missing")
            with pytest.raises(SampleSizeChanged) as caught:
                fill(reader, batch)
        assert caught.value.samples.tolist() == [0]
        assert read(reader, np.array([0, 1])) == [bytes(left), b"other"]


def test_an_error_of_the_storage_names_the_file_and_affects_no_other(io, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"bytes")
    bad = "/proc/self/mem"  # to read its beginning is an I/O error
    catalog = from_files([str(tmp_path / "file"), bad, bad, str(tmp_path / "file")])
    with XnvmeFileReader(catalog, io=io, lanes=1) as reader:
        monkeypatch.setattr(reader._files, "sizes_now", lambda fds, _: np.full(len(fds), 5))
        monkeypatch.setattr("os.fstat", lambda fd: os.stat_result([0o100644, *[0] * 5, 5, 0, 0, 0]))
        with raises_naming(OSError, bad) as caught:
            read(reader, np.array([0, 3, 2, 1]))
        # libaio cannot read it at all
        assert caught.value.errno == (errno.EINVAL if io == "libaio" else errno.EIO)
        assert read(reader, np.array([0, 3])) == [b"bytes"] * 2


def test_a_failed_opening_leaves_nothing(xnvme, monkeypatch):
    class Third(FileQueue):
        """Of three lanes, the last has none."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)
            if len(made) % 3 == 0:
                self.close()
                raise MemoryError

    def fail(openings):
        for _ in range(openings):
            with pytest.raises(MemoryError):
                XnvmeFileReader(from_files(["x"]), io="emu", queue_depth=8)
            made.clear()

    made = []
    monkeypatch.setattr("dali_storage.backends.xnvme_file.FileQueue", Third)
    require_no_leak(lambda: fail(100))
