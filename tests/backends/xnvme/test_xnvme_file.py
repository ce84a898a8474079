from __future__ import annotations

import errno
import gc
import os
import resource
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.xnvme import file_queue
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import IOS, FileQueue
from dali_storage.backends.xnvme.library import Library
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, SampleSizeChanged
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_files
from dali_storage.testing import (
    RangeTests,
    ReaderTests,
    fill,
    make_batch,
    make_known_batch,
    nothing_is_left,
    read,
)
from tests.kit.dali import build, take
from tests.kit.process import open_files
from tests.kit.trees import Tree
from tests.kit.xnvme import offers

DIRECT_IOS = ("io_uring", "libaio")


@pytest.fixture
def offered(xnvme: Library) -> set[str]:
    """The implementations that this libxnvme offers here."""
    return {io for io in IOS if offers(xnvme, io)}


def open_reader(catalog: Catalog, offered: set[str], io: str, **options: Any) -> XnvmeFileReader:
    if io not in offered:
        pytest.skip(f"this libxnvme does not offer {io} here, but {', '.join(sorted(offered))}")
    return XnvmeFileReader(catalog, io=io, **options)


class XnvmeFileTests(RangeTests, ReaderTests):
    options: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def library(self, offered: set[str]) -> None:
        self.offered = offered

    def open(self, catalog: Catalog) -> Reader:
        return open_reader(catalog, self.offered, **self.options)


class TestIoUring(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring"}
    batches = 5_000
    openings = 500


class TestIoUringDirect(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring", "direct": True}


class TestIoUringOneAtATime(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "io_uring", "queue_depth": 1, "lanes": 1}


class TestLibaio(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "libaio"}
    batches = 1_500
    openings = 10  # the kernel takes 33 ms to end an AIO context


class TestLibaioDirect(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {
        "io": "libaio",
        "direct": True,
        "queue_depth": 2,
        "lanes": 2,
    }


class TestEmu(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "emu"}
    batches = 1_500
    openings = 50


class TestThrpool(XnvmeFileTests):
    options: ClassVar[dict[str, Any]] = {"io": "thrpool", "queue_depth": 4, "lanes": 2}
    batches = 1_500
    openings = 50


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"io": "posix"}, ValueError, "io must be one of io_uring, libaio, emu, thrpool"),
        ({"io": "io_uring_cmd"}, ValueError, "io must be one of"),
        ({"queue_depth": 0}, ValueError, "queue_depth must be a power of two from 1 to 2048"),
        ({"queue_depth": 48}, ValueError, "power of two from 1 to 2048, not 48"),
        ({"queue_depth": 4096}, ValueError, "power of two from 1 to 2048, not 4096"),
        ({"queue_depth": 64.0}, ValueError, "queue_depth"),
        ({"queue_depth": True}, ValueError, "queue_depth"),
        ({"lanes": 0}, ValueError, "lanes"),
        ({"lanes": 65}, ValueError, "lanes"),
        ({"lanes": "2"}, ValueError, "lanes"),
        ({"direct": 1}, TypeError, "direct must be True or False"),
        ({"direct": True, "io": "emu"}, ValueError, "direct needs the io io_uring or libaio"),
        ({"direct": True, "io": "thrpool"}, ValueError, "direct needs the io io_uring or libaio"),
    ],
)
def test_wrong_options_are_named_even_without_a_library(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    with pytest.raises(error, match=message):
        XnvmeFileReader(from_files(["x"]), **options)


def test_no_library_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    assert "conda-forge" in str(XnvmeFileReader.unavailable())
    with pytest.raises(BackendUnavailable, match="conda-forge"):
        XnvmeFileReader(from_files(["x"]))


def test_what_is_not_offered_is_unavailable_and_never_replaced(
    xnvme: Library, offered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert XnvmeFileReader.unavailable() is None or "io_uring" not in offered
    others = [io for io in IOS if io in offered and io != "io_uring"]

    def forbidden(device: XnvmeDevice, depth: int) -> Queue:
        if device.io == "io_uring":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return Queue(device, depth)

    monkeypatch.setattr(file_queue, "Queue", forbidden)
    gc.collect()  # what other tests have left open
    before = open_files()
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
    assert open_files() <= before


def test_a_limit_of_open_files_that_is_too_low_is_named(xnvme: Library) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            XnvmeFileReader(from_files(["x"]), io="emu", queue_depth=2048)
        assert "ulimit -n" in str(caught.value)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caught.value.errno == errno.EMFILE


@pytest.mark.parametrize("io", IOS)
def test_everything_is_open_for_reading_only(
    offered: set[str], tmp_path: Path, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    modes = set()
    submit = FileQueue.submit

    def watch(queue: FileQueue, contexts: list[int], fds: list[int], *rest: Any) -> list[int]:
        codes = submit(queue, contexts, fds, *rest)
        for fd in [*fds, *(queue._targets[context] for context in contexts)]:
            assert os.path.sameopenfile(fd, fds[0])
            flags = Path(f"/proc/self/fdinfo/{fd}").read_text().split("flags:")[1].split()[0]
            modes.add(int(flags, 8) & os.O_ACCMODE)
        return codes

    with open_reader(from_files([str(tmp_path / "file")]), offered, io, lanes=1) as reader:
        monkeypatch.setattr(FileQueue, "submit", watch)
        assert read(reader, np.array([0])) == [bytes(5000)]
    assert modes == {os.O_RDONLY}


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping the page cache needs root: run as root")
@pytest.mark.parametrize(
    ("io", "direct"), [*((io, False) for io in IOS), *((io, True) for io in DIRECT_IOS)]
)
def test_files_that_are_not_in_the_page_cache_are_read_right(
    offered: set[str], tmp_path: Path, io: str, direct: bool
) -> None:
    contents = [np.random.default_rng(index).bytes(1 + 37_501 * index) for index in range(40)]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}").write_bytes(content)
    catalog = from_files([f"{tmp_path}/{index}" for index in range(40)])
    with open_reader(catalog, offered, io, direct=direct, queue_depth=16) as reader:
        drop_caches()
        assert read(reader, np.arange(40)) == contents
        drop_caches()
        for index in range(0, 40, 3):  # some cached whole, some in part, some not at all
            with open(tmp_path / f"{index}", "rb") as file:
                file.read(len(contents[index]) if index % 2 else 5000)
        assert read(reader, np.arange(40)) == contents


def test_a_file_system_without_direct_io_is_refused_at_opening(xnvme: Library) -> None:
    with pytest.raises(OSError, match="direct=False") as caught:
        XnvmeFileReader(from_files(["/proc/version"]), direct=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/proc/version")


@pytest.mark.parametrize("io", IOS)
def test_what_is_not_a_regular_file_is_named_and_not_waited_for(
    offered: set[str], tmp_path: Path, io: str
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with open_reader(from_files([str(tmp_path / "file")]), offered, io) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        with pytest.raises(OSError, match="not a regular file") as caught:
            fill(reader, batch)
        assert caught.value.filename == str(tmp_path / "file")


@pytest.mark.parametrize("io", IOS)
def test_a_batch_of_more_files_than_a_process_may_open(
    offered: set[str], tmp_path: Path, io: str
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with open_reader(from_files([str(tmp_path / "file")]), offered, io) as reader:
        assert read(reader, np.zeros(5000, np.int64)) == [b"bytes"] * 5000


def test_a_name_that_is_long_and_not_utf8(xnvme: Library, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/class"
    for _ in range(10):
        folder += b"/" + b"\xff" * 100
    os.makedirs(folder)
    with open(folder + b"/\xff\xfe.jpg", "wb") as file:
        file.write(b"bytes")
    catalog = from_files([os.fsdecode(folder + b"/\xff\xfe.jpg")])
    with XnvmeFileReader(catalog, io="emu") as reader:
        assert read(reader, np.array([0])) == [b"bytes"]


def test_a_file_larger_than_one_read_can_be(offered: set[str], tmp_path: Path) -> None:
    size = (2 << 30) + 4096 + 17
    with open(tmp_path / "file", "wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"right")
    catalog = from_files([str(tmp_path / "file")])
    with open_reader(catalog, offered, "io_uring", direct=True) as reader:
        batch = make_batch(reader, np.array([0]))
        batch.buffer[size - 5 : size] = 255
        fill(reader, batch)
        assert batch.buffer[size - 5 : size].tobytes() == b"right"
        assert not batch.buffer[: 1 << 20].any()


@pytest.mark.parametrize("io", IOS)
@pytest.mark.parametrize("left", [0, 1, 4096, 5000])
def test_a_file_that_shrinks_under_the_read_is_no_error_and_no_sample(
    offered: set[str], tmp_path: Path, io: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(9999))
    (tmp_path / "other").write_bytes(b"other")
    catalog = from_files([str(tmp_path / "file"), str(tmp_path / "other")])
    with open_reader(catalog, offered, io, lanes=1) as reader:
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


@pytest.mark.parametrize("io", IOS)
def test_an_error_of_the_storage_names_the_file_and_affects_no_other(
    offered: set[str], tmp_path: Path, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    bad = "/proc/self/mem"  # to read its beginning is an I/O error
    catalog = from_files([str(tmp_path / "file"), bad, bad, str(tmp_path / "file")])
    with open_reader(catalog, offered, io, lanes=1) as reader:
        monkeypatch.setattr(reader._files, "sizes_now", lambda fds, _: np.full(len(fds), 5))
        monkeypatch.setattr("os.fstat", lambda fd: os.stat_result([0o100644, *[0] * 5, 5, 0, 0, 0]))
        with pytest.raises(OSError) as caught:
            read(reader, np.array([0, 3, 2, 1]))
        number = errno.EINVAL if io == "libaio" else errno.EIO  # which it cannot read at all
        assert (caught.value.errno, caught.value.filename) == (number, bad)
        assert read(reader, np.array([0, 3])) == [b"bytes"] * 2


def test_buffers_outlive_the_reader(xnvme: Library, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with XnvmeFileReader(from_files([str(tmp_path / "file")]), io="emu") as reader:
        batch = make_batch(reader, np.array([0]))
        fill(reader, batch)
    piece = batch.buffer[1:4]
    del batch
    assert piece.tobytes() == b"yte"
    piece[:] = 7
    assert (piece == 7).all()
    with pytest.raises(ValueError, match="closed"):
        reader.allocate(1)


def test_nothing_is_left_of_openings_that_fail(
    xnvme: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Third(FileQueue):
        """Of three lanes, the last has none."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)
            if len(made) % 3 == 0:
                self.close()
                raise MemoryError

    def fail(openings: int) -> None:
        for _ in range(openings):
            with pytest.raises(MemoryError):
                XnvmeFileReader(from_files(["x"]), io="emu", queue_depth=8)
            made.clear()

    made: list[FileQueue] = []
    monkeypatch.setattr("dali_storage.backends.xnvme_file.FileQueue", Third)
    fail(3)
    with nothing_is_left():
        fail(100)


@pytest.mark.parametrize("io", IOS)
def test_a_pipeline_gets_the_bytes_of_the_files(offered: set[str], tree: Tree, io: str) -> None:
    if io not in offered:
        pytest.skip(f"this libxnvme does not offer {io} here")
    root = tree(30)
    options: ClassVar[dict[str, Any]] = {"io": io, "queue_depth": 4}
    pipeline = build(
        readers.file,
        file_root=str(root),
        name="Reader",
        backend="xnvme-file",
        backend_options=options,
    )
    expected = [
        (path.read_bytes(), int(path.parent.name[-1])) for path in sorted(root.rglob("*.jpg"))
    ]
    assert sorted(take(pipeline, 7)[:28]) == sorted(expected[:28])
