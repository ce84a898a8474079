from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends import _xnvme, _xnvme_queue
from dali_storage.backends._xnvme import Library
from dali_storage.backends._xnvme_blocks import COMMAND, MOST_BLOCKS, BlockReads
from dali_storage.backends._xnvme_devices import _OPTS_READ, GEOMETRY, OPTS, Device
from dali_storage.backends._xnvme_files import IOS, FileQueue, open_anonymous
from dali_storage.backends._xnvme_queue import CONTEXT, NOTHING_TO_DO, Queue
from dali_storage.backends._xnvme_reads import FileReads
from dali_storage.backends._xnvme_status import explain
from dali_storage.errors import BackendUnavailable

from .devices import loop_device
from .interrupts import interrupted

ROOT = Path(_xnvme.__file__).resolve().parent.parent


# --- the library ---


def test_no_library_says_what_was_tried_and_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    with pytest.raises(BackendUnavailable) as caught:
        _xnvme.load()
    for words in ("XNVME_LIBRARY_PATH: /no/such/libxnvme.so", "conda-forge", "Alpine", "meson"):
        assert words in str(caught.value)


def test_the_search_goes_from_the_loader_to_pkg_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_xnvme, "_NAMES", ("libnot-there.so",))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("XNVME_LIBRARY_PATH", raising=False)
    _xnvme._load.cache_clear()
    with pytest.raises(BackendUnavailable) as caught:  # there is no pkg-config
        _xnvme.load()
    assert str(caught.value).count("libnot-there.so") == 1
    (tmp_path / "pkg-config").write_text(
        '#!/bin/sh\n[ "$*" = "--variable=libdir xnvme" ] && echo /lib/of/it\n'
    )
    (tmp_path / "pkg-config").chmod(0o755)
    with pytest.raises(BackendUnavailable, match=r"/lib/of/it/libnot-there\.so"):
        _xnvme.load()
    (tmp_path / "pkg-config").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BackendUnavailable) as caught:
        _xnvme.load()
    assert "/lib/of/it" not in str(caught.value)


def test_another_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "libc.so.6")
    with pytest.raises(BackendUnavailable, match=r"libc\.so\.6 is not a libxnvme.*xnvme_dev_open"):
        _xnvme.load()


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([b"xnvme_queue_set_cb"], "it has no xnvme_queue_set_cb"),
        ([b"xnvme_be_attr_get", b"xnvme_be_attr_list_bundled"], "neither 0.7.5 nor main"),
    ],
)
def test_a_library_that_lacks_a_symbol_is_refused(
    xnvme: Library,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    symbols: list[bytes],
    message: str,
) -> None:
    content = Path(_loaded_file(xnvme)).read_bytes()
    for symbol in symbols:
        content = content.replace(b"\0" + symbol + b"\0", b"\0" + symbol[:-1] + b"?\0")
    (tmp_path / "libxnvme.so").write_bytes(content)
    monkeypatch.setenv("XNVME_LIBRARY_PATH", str(tmp_path / "libxnvme.so"))
    with pytest.raises(BackendUnavailable, match=message):
        _xnvme.load()


def test_the_version_is_told_by_what_only_one_has(xnvme: Library) -> None:
    content = Path(_loaded_file(xnvme)).read_bytes()
    is_main = b"\0xnvme_be_attr_get\0" in content
    assert is_main != (b"\0xnvme_be_attr_list_bundled\0" in content)
    assert xnvme.version == ("main" if is_main else "0.7.5")


def test_nothing_is_loaded_before_it_is_used() -> None:
    script = (
        "from dali_storage.backends import xnvme_file\n"
        "assert 'xnvme.so' not in open('/proc/self/maps').read()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


LAYOUTS = """
import ctypes, json
from xnvme.ctypes_bindings import api
known = {
    "opts": api.xnvme_opts,
    "geo": api.xnvme_geo,
    "ctx": api.xnvme_cmd_ctx,
    "cpl": api.xnvme_spec_cpl,
    "common": api.xnvme_spec_cmd_common,
    "cmd": api.xnvme_spec_cmd_nvm,
}
print(json.dumps({name: {
    "size": ctypes.sizeof(kind),
    **{field[0]: getattr(kind, field[0]).offset for field in kind._fields_},
} for name, kind in known.items()}))
"""


def test_the_layouts_are_those_of_the_bindings_on_pypi(xnvme: Library) -> None:
    pytest.importorskip("xnvme", reason="the package xnvme: pip install xnvme==0.7.5")
    if xnvme.version != "0.7.5":
        pytest.skip("the package xnvme works with libxnvme 0.7.5 only; this one is main")
    run = subprocess.run(
        [sys.executable, "-c", LAYOUTS],
        env=os.environ | {"XNVME_LIBRARY_PATH": xnvme.path},
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(run.stdout)
    assert theirs["opts"]["size"] <= OPTS.itemsize
    assert theirs["opts"]["main_core"] == 84  # the last before what differs in main
    assert offsets(OPTS) == {name: theirs["opts"][name] for name in offsets(OPTS)}
    assert max(offsets(OPTS).values()) < _OPTS_READ < 92
    assert GEOMETRY.itemsize == theirs["geo"]["size"]
    assert offsets(GEOMETRY) == {name: theirs["geo"][name] for name in offsets(GEOMETRY)}
    assert CONTEXT.itemsize == theirs["ctx"]["size"]
    assert offsets(CONTEXT) == {
        "head": theirs["ctx"]["cmd"],
        "state": theirs["ctx"]["cmd"],
        "result": theirs["ctx"]["cpl"],
        "status": theirs["ctx"]["cpl"] + theirs["cpl"]["status"],
        "device": theirs["ctx"]["dev"],
    }
    assert CONTEXT["head"].itemsize == theirs["cmd"]["size"] + theirs["cpl"]["size"]
    assert COMMAND.itemsize == CONTEXT["head"].itemsize
    fields = theirs["common"] | theirs["cmd"]
    for name in ("opcode", "cid", "nsid", "slba", "nlb"):
        assert offsets(COMMAND)[name] == fields[name]
    assert offsets(COMMAND)["completion"] == theirs["ctx"]["cpl"]
    assert sum(field[0].itemsize for field in (COMMAND.fields or {}).values()) == COMMAND.itemsize


def offsets(dtype: np.dtype[Any]) -> dict[str, int]:
    return {name: field[1] for name, field in (dtype.fields or {}).items()}


def _loaded_file(library: Library) -> str:
    """The file that the dynamic loader has taken for a library."""
    address = ctypes.cast(library.xnvme_dev_open, ctypes.c_void_p)
    info = (ctypes.c_char_p * 4)()  # Dl_info; the name comes first
    assert ctypes.CDLL(None).dladdr(address, info) != 0
    return os.fsdecode(info[0] or b"")


# --- devices, files, memory ---


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(np.random.default_rng(1).bytes(100_000))
    return tmp_path / "file"


def open_file(library: Library, path: object, **options: Any) -> Device:
    options = {"io": "emu", "sync": "psync", "file": True} | options
    return Device(library, os.fsencode(str(path)), **options)


def open_ramdisk(library: Library, io: str) -> Device:
    """A namespace in memory, which no process but this one sees."""
    main = {"nil": "ramdisk", "emu": "ramdisk_emu", "thrpool": "ramdisk_thrpool"}[io]
    return Device(library, b"1GB", be=main if library.version == "main" else "ramdisk", io=io)


@pytest.fixture
def ramdisk(xnvme: Library) -> Iterator[Device]:
    with open_ramdisk(xnvme, "emu") as device:
        yield device


@pytest.mark.parametrize("io", IOS)
def test_files_are_opened_read_only(xnvme: Library, file: Path, io: str) -> None:
    with offered(xnvme, io), open_file(xnvme, file, io=io) as device:
        assert device.io == io
        assert os.path.samefile(f"/proc/self/fd/{device.descriptor}", file)
        assert access_mode(device.descriptor) == os.O_RDONLY


def access_mode(fd: int) -> int:
    (line,) = [
        line
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if "flags:" in line
    ]
    return int(line.split()[1], 8) & os.O_ACCMODE


@contextmanager
def offered(library: Library, io: str) -> Iterator[None]:
    try:
        open_anonymous(library, io).close()
        FileQueue(library, io, 1).close()
    except OSError as error:
        pytest.skip(f"{library.path} does not offer {io} here: {error}")
    yield


def test_what_cannot_be_opened_is_named(xnvme: Library, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open_file(xnvme, tmp_path / "missing")
    assert caught.value.filename == str(tmp_path / "missing")
    with pytest.raises(OSError) as caught:
        open_file(xnvme, "x" * 1000)
    assert caught.value.errno == errno.EINVAL


def test_an_implementation_that_is_not_there_is_an_error(xnvme: Library, file: Path) -> None:
    with pytest.raises(OSError, match="libxnvme cannot open it"):
        open_file(xnvme, file, io="no_such_io")


def test_direct_is_never_dropped(xnvme: Library, file: Path) -> None:
    with open_file(xnvme, file, direct=True) as device:
        flags = Path(f"/proc/self/fdinfo/{device.descriptor}").read_text().split()[3]
        assert int(flags, 8) & os.O_DIRECT
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="direct=1") as caught:  # libxnvme itself opens it without
        open_file(xnvme, "/proc/version", direct=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/proc/version")
    assert os.listdir("/proc/self/fd") == before


def test_an_implementation_is_never_replaced(xnvme: Library, file: Path) -> None:
    with open_file(xnvme, file, io="emu") as device:
        wanted = np.zeros((), OPTS)
        wanted["rdonly"] = 1
        assert device._check(b"uri", wanted, "emu") == "emu"
        with pytest.raises(OSError, match="'emu', not 'io_uring'"):
            device._check(b"uri", wanted, "io_uring")


def test_the_geometry_of_a_device(ramdisk: Device) -> None:
    geometry = ramdisk.geometry()
    assert (geometry.kind, geometry.size, geometry.lba_bytes) == ("conventional", 1 << 30, 512)
    assert geometry.max_transfer == 1 << 20  # libxnvme's word for no limit
    assert not geometry.has_metadata
    assert ramdisk.nsid == 1


def test_a_device_that_does_not_tell_its_geometry_is_refused(
    ramdisk: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros = np.zeros((), GEOMETRY)
    monkeypatch.setattr(
        ramdisk.library, "xnvme_dev_get_geo", lambda _: zeros.ctypes.data, raising=False
    )
    with pytest.raises(OSError, match="geometry"):
        ramdisk.geometry()
    zeros["type"] = 1
    with pytest.raises(OSError, match="geometry"):
        ramdisk.geometry()
    zeros["lba_nbytes"] = 4096
    assert ramdisk.geometry().lba_bytes == 4096


class Calls:
    """Counts the calls of a function, and makes them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.arguments: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> Any:
        self.arguments.append(arguments)
        return self.function(*arguments)


def test_memory_is_freed_when_the_last_slice_is_gone_and_the_device_after_it(
    xnvme: Library, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, close = Calls(xnvme.xnvme_buf_free), Calls(xnvme.xnvme_file_close)
    monkeypatch.setattr(xnvme, "xnvme_buf_free", free, raising=False)
    monkeypatch.setattr(xnvme, "xnvme_file_close", close, raising=False)
    device = open_file(xnvme, file)
    memory = device.allocate(5000)
    assert memory.size >= 5000
    assert memory.ctypes.data % 4096 == 0
    last = memory[10:4000].view(np.uint16)[100:200].reshape(10, 10)
    device.close()
    device.close()
    del memory
    gc.collect()
    last[:] = 7
    assert (free.arguments, close.arguments) == ([], [])
    address = last.ctypes.data - 210
    del last
    assert free.arguments == [(device.pointer, address)]
    assert close.arguments == [(device.pointer,)]
    with pytest.raises(ValueError, match="closed"):
        device.allocate(1)


def test_memory_that_is_not_there_says_what_to_do(ramdisk: Device) -> None:
    with pytest.raises(MemoryError, match=r"vm\.nr_hugepages"):
        ramdisk.allocate(1 << 60)


# --- queues ---


class Reads(BlockReads):
    """Reads of blocks of 512 bytes, as many each, that remember in which order they ended."""

    def __init__(
        self, queue: Queue, slba: np.ndarray, nlb: int, memory: np.ndarray, **options: Any
    ) -> None:
        addresses = memory.ctypes.data + np.arange(slba.size) * nlb * 512
        super().__init__(queue, slba, np.full(slba.size, nlb), addresses, 512, **options)
        self.ended: list[int] = []

    @property
    def commands(self) -> np.ndarray:
        return self._heads.view(COMMAND)

    def finish(self, numbers: np.ndarray, results: np.ndarray, statuses: np.ndarray) -> list[int]:
        self.ended += numbers.tolist()
        return super().finish(numbers, results, statuses)


@pytest.mark.parametrize("depth", [1, 2, 16, 256, 2048])
@pytest.mark.parametrize("io", ["emu", "thrpool"])
def test_nvme_reads_bring_the_right_blocks(xnvme: Library, io: str, depth: int) -> None:
    device = open_ramdisk(xnvme, io)
    assert device.geometry().lba_bytes == 512  # asking for it is what makes libxnvme know it
    random = np.random.default_rng(depth)
    blocks = random.integers(0, 256, (3000, 512), np.uint8)
    with device, Queue(device, depth) as queue:
        write = Reads(queue, np.arange(3000), 1, blocks)
        write.commands["opcode"] = 1  # a write, to memory of this process
        queue.run(write, blocks)
        assert sorted(write.ended) == list(range(3000))
        slba = random.integers(0, 2995, 500)
        memory = device.allocate(500 * 5 * 512)
        read = Reads(queue, slba, 5, memory)
        queue.run(read, memory)
        assert sorted(read.ended) == list(range(500))
        assert not read.statuses.any()
        expected = np.stack([blocks[first : first + 5].reshape(-1) for first in slba.tolist()])
        assert (memory.reshape(500, 5 * 512) == expected).all()


def test_blocks_far_out_are_not_wrapped(xnvme: Library) -> None:
    with open_ramdisk(xnvme, "nil") as device, Queue(device, 1) as queue:
        slba = np.array([(1 << 40) + 5])  # nil reads nothing
        queue.run(Reads(queue, slba, MOST_BLOCKS, slba), slba)
        command = queue.heads.copy().view(COMMAND)
        assert command["slba"].tolist() == [(1 << 40) + 5]
        assert command["nlb"].tolist() == [0xFFFF]


@pytest.mark.parametrize("depth", [1, 16])
def test_an_implementation_that_writes_no_results_completes(xnvme: Library, depth: int) -> None:
    with open_ramdisk(xnvme, "nil") as device, Queue(device, depth) as queue:
        work = Reads(queue, np.arange(100), 8, np.zeros(1))
        work.statuses[:] = 9
        queue.run(work, None)
        assert sorted(work.ended) == list(range(100))
        assert not work.statuses.any()


def test_a_refused_command_does_not_harm_its_neighbours(xnvme: Library, file: Path) -> None:
    with offered(xnvme, "io_uring"), open_file(xnvme, file, io="io_uring") as device:
        memory = np.zeros((10, 512), np.uint8)
        with Queue(device, 4) as queue:
            work = Reads(queue, np.arange(10) * 512, 1, memory)
            work.commands["opcode"] = 0xDC  # the read of a file, by bytes
            work.commands["opcode"][3] = 0x55
            queue.run(work, memory)
        assert work.errors.tolist() == [0, 0, 0, errno.ENOSYS, 0, 0, 0, 0, 0, 0]
        assert sorted(work.ended) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
        assert work.results.tolist() == [512, 512, 512, 0, *[512] * 6]
        memory[3] = np.frombuffer(file.read_bytes(), np.uint8)[3 * 512 : 4 * 512]
        assert memory.tobytes() == file.read_bytes()[:5120]


@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.parametrize("io", IOS)
def test_blocks_of_a_block_device(xnvme: Library, tmp_path: Path, io: str, sector: int) -> None:
    content = np.random.default_rng(sector).integers(0, 256, (1000, sector), np.uint8)
    (tmp_path / "image").write_bytes(content.tobytes())
    with offered(xnvme, io), loop_device(tmp_path / "image", sector=sector) as path:  # noqa: SIM117
        with Device(xnvme, path.encode(), io=io, sync="block", direct=True) as device:
            assert access_mode(device.descriptor) == os.O_RDONLY
            geometry = device.geometry()
            assert (geometry.kind, geometry.lba_bytes) == ("conventional", sector)
            assert geometry.size == content.size
            slba = np.random.default_rng(0).integers(0, 990, 300)
            memory = device.allocate(300 * 10 * sector).reshape(300, -1)
            addresses = memory.ctypes.data + np.arange(300) * memory.strides[0]
            with Queue(device, 32) as queue:
                reads = BlockReads(queue, slba, np.full(300, 10), addresses, sector)
                queue.run(reads, memory)
            assert not reads.statuses.any()
            assert (reads.results == 10 * sector).all()
            expected = [content[first : first + 10].reshape(-1) for first in slba.tolist()]
            assert (memory == np.stack(expected)).all()


def test_a_block_device_whose_geometry_libxnvme_gets_wrong_is_refused(
    xnvme: Library, tmp_path: Path
) -> None:
    if xnvme.version != "main":
        pytest.skip("libxnvme 0.7.5 finds it out by itself")
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    with offered(xnvme, "io_uring"), loop_device(tmp_path / "image") as path:  # noqa: SIM117
        with Device(xnvme, path.encode(), io="io_uring") as device:  # no sync="block"
            with pytest.raises(OSError, match="geometry"):
                device.geometry()


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_failed_command_is_retried_as_often_as_wanted(
    xnvme: Library, file: Path, retries: int
) -> None:
    with offered(xnvme, "io_uring"), open_file(xnvme, file, io="io_uring") as device:
        memory = np.zeros((6, 512), np.uint8)
        with Queue(device, 2) as queue:
            work = Reads(queue, np.arange(6) * 512, 1, memory, retries=retries)
            work.commands["opcode"] = 0xDC
            work._memory[4] = 4096  # no memory is there
            queue.run(work, memory)
        assert sorted(work.ended) == sorted([0, 1, 2, 3, 5, *[4] * (1 + retries)])
        assert work.statuses.tolist() == [0, 0, 0, 0, 0x700 | errno.EFAULT, 0]
        assert memory[5].tobytes() == file.read_bytes()[5 * 512 : 6 * 512]


def test_a_command_that_is_refused_for_now_is_submitted_again(xnvme: Library) -> None:
    class Stubborn(Reads):
        """Refuses each command once, but for the first of a submission."""

        seen: ClassVar[set[int]] = set()

        def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
            codes = super().submit(numbers[:1], contexts[:1])
            for number, context in zip(numbers[1:], contexts[1:], strict=True):
                again = number in self.seen
                self.seen.add(number)
                codes += super().submit([number], [context]) if again else [-errno.EBUSY]
            return codes

    with open_ramdisk(xnvme, "nil") as device, Queue(device, 8) as queue:
        work = Stubborn(queue, np.arange(50), 1, np.zeros(1))
        queue.run(work, None)
        assert sorted(work.ended) == list(range(50))
        assert not work.errors.any()
        assert len(work.seen) > 20


def test_a_command_that_an_idle_queue_refuses_is_refused(xnvme: Library) -> None:
    class Never(Reads):
        def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
            return [-errno.EAGAIN if number % 2 else NOTHING_TO_DO for number in numbers]

    with open_ramdisk(xnvme, "nil") as device, Queue(device, 8) as queue:
        work = Never(queue, np.arange(20), 1, np.zeros(1))
        queue.run(work, None)
        assert work.errors.tolist() == [0, errno.EAGAIN] * 10
        assert work.ended == []


@pytest.mark.parametrize("depth", [0, 3, 4096])
def test_a_depth_that_libxnvme_does_not_take_is_an_error(ramdisk: Device, depth: int) -> None:
    with pytest.raises(OSError) as caught:
        Queue(ramdisk, depth)
    assert caught.value.errno == errno.EINVAL


def test_contexts_that_lie_elsewhere_are_refused(
    ramdisk: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter([1 << 20, (1 << 20) + 256])
    monkeypatch.setattr(
        ramdisk.library, "xnvme_queue_get_cmd_ctx", lambda _: next(taken), raising=False
    )
    with pytest.raises(BackendUnavailable, match="contexts"):
        Queue(ramdisk, 2)


# --- files by one queue ---


class Descriptors(FileReads):
    """Reads of open files."""

    def __init__(self, queue: FileQueue, fds: list[int], memory: np.ndarray) -> None:
        """`memory` is uint8[n, size]."""
        addresses = memory.ctypes.data + np.arange(len(fds)) * memory.strides[0]
        super().__init__(queue, addresses, np.full(len(fds), memory.shape[1]))
        self.fds = fds
        self.ended: list[int] = []
        self.waits = 0

    def open(self, numbers: list[int]) -> list[int]:
        return [self.fds[number] for number in numbers]

    def end(self, numbers: list[int]) -> None:
        self.ended += numbers

    def waiting(self) -> None:
        self.waits += 1


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """A hundred of 3000 bytes each, its number."""
    fds = []
    for number in range(100):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 3000)
        fds.append(os.open(tmp_path / str(number), os.O_RDONLY))
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("depth", [1, 2, 64])
@pytest.mark.parametrize("io", IOS)
def test_one_queue_reads_many_files(xnvme: Library, files: list[int], io: str, depth: int) -> None:
    memory = np.zeros((100, 3000), np.uint8)
    with offered(xnvme, io), FileQueue(xnvme, io, depth) as queue:
        for _ in range(3):
            memory[:] = 255
            work = Descriptors(queue, files, memory)
            queue.run(work, memory)
            assert not work.errors.any()
            assert (work.got == 3000).all()
            assert sorted(work.ended) == list(range(100))
            assert (memory == np.arange(100)[:, np.newaxis]).all()


@pytest.mark.parametrize("io", IOS)
def test_a_long_file_is_read_in_pieces(
    xnvme: Library, file: Path, io: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dali_storage.backends._xnvme_reads._MOST", 7000)
    memory = np.zeros((5, 100_000), np.uint8)
    with offered(xnvme, io), FileQueue(xnvme, io, 2) as queue, open(file, "rb") as opened:
        work = Descriptors(queue, [opened.fileno()] * 5, memory)
        queue.run(work, memory)
        assert sorted(work.ended) == list(range(5))
    assert all(row.tobytes() == file.read_bytes() for row in memory)


@pytest.mark.parametrize(("release", "cleared"), [("5.14.0-70.el9", True), ("6.1", False)])
def test_files_do_not_stay_nonblocking_where_io_uring_minds(
    xnvme: Library, file: Path, monkeypatch: pytest.MonkeyPatch, release: str, cleared: bool
) -> None:
    monkeypatch.setattr("platform.release", lambda: release)
    memory = np.zeros((1, 4096), np.uint8)
    with offered(xnvme, "io_uring"), FileQueue(xnvme, "io_uring", 2) as queue:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        queue.run(Descriptors(queue, [fd], memory), memory)
        assert os.get_blocking(fd) == cleared
        os.close(fd)
    assert memory.tobytes() == file.read_bytes()[:4096]


@pytest.mark.parametrize("io", IOS)
def test_no_file_stays_open_in_a_queue(xnvme: Library, file: Path, io: str) -> None:
    memory = np.zeros((3, 100), np.uint8)
    with offered(xnvme, io), FileQueue(xnvme, io, 2) as queue:
        fd = os.open(file, os.O_RDONLY)
        queue.run(Descriptors(queue, [fd, -1, fd], memory), memory)
        os.close(fd)
        links = [
            os.readlink(link.path) for link in os.scandir("/proc/self/fd") if link.is_symlink()
        ]
        assert str(file) not in links


@pytest.mark.parametrize("io", IOS)
def test_a_failed_read_has_its_errno_and_harms_no_other(
    xnvme: Library, files: list[int], io: str
) -> None:
    memory = np.zeros((3, 3000), np.uint8)
    with offered(xnvme, io), FileQueue(xnvme, io, 4) as queue:
        work = Descriptors(queue, [files[1], files[2], files[3]], memory)
        work._memory[1] = 4096  # no memory is there
        queue.run(work, memory)
        assert work.errors.tolist() == [0, errno.EFAULT, 0]
        assert (memory[0] == 1).all()
        assert (memory[2] == 3).all()


def test_a_closed_queue_is_refused(xnvme: Library) -> None:
    queue = FileQueue(xnvme, "emu", 1)
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.run(Descriptors(queue, [], np.zeros((0, 1), np.uint8)), None)


def test_a_library_that_does_not_read_where_the_descriptor_is_moved_is_refused(
    xnvme: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dali_storage.backends._xnvme_files._dup3", lambda *_: 0)
    with pytest.raises(BackendUnavailable, match="descriptors"):
        FileQueue(xnvme, "emu", 4)


def test_a_library_that_keeps_its_descriptors_elsewhere_is_refused(
    xnvme: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (0, 1 << 20):
        monkeypatch.setattr(Device, "descriptor", wrong)
        with pytest.raises(BackendUnavailable, match="descriptors"):
            FileQueue(xnvme, "emu", 4)


# --- waiting, and being interrupted ---


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """What is read from its end takes as long as the test wants."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def write_later(fd: int, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.write, (fd, b"12345678"))
    timer.start()
    return timer


def test_waiting_takes_no_processor(xnvme: Library, pipe: tuple[int, int]) -> None:
    memory = np.zeros((1, 8), np.uint8)
    with offered(xnvme, "io_uring"), FileQueue(xnvme, "io_uring", 8) as queue:
        timer = write_later(pipe[1], 0.5)
        work = Descriptors(queue, [pipe[0]], memory)
        begun = time.thread_time()
        queue.run(work, memory)
        assert time.thread_time() - begun < 0.1
        timer.join()
        assert memory.tobytes() == b"12345678"
        assert work.waits > 1


def test_spinning_takes_one(xnvme: Library, pipe: tuple[int, int]) -> None:
    memory = np.zeros((1, 8), np.uint8)
    with offered(xnvme, "io_uring"), FileQueue(xnvme, "io_uring", 8) as queue:
        queue._opened_queue()._spin = True
        timer = write_later(pipe[1], 0.5)
        begun = time.thread_time()
        queue.run(Descriptors(queue, [pipe[0]], memory), memory)
        assert time.thread_time() - begun > 0.1  # the machine may have more to do
        timer.join()


class Tired(Descriptors):
    """Raises while commands are under way."""

    def waiting(self) -> None:
        raise RuntimeError("tired")


@pytest.mark.parametrize("method", ["submit", "finish", "waiting"])
def test_an_error_waits_for_what_is_under_way(
    xnvme: Library, pipe: tuple[int, int], file: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        original(*arguments)
        raise RuntimeError("tired")

    memory = np.zeros((3, 8), np.uint8)
    with (
        offered(xnvme, "io_uring"),
        FileQueue(xnvme, "io_uring", 8) as queue,
        open(file, "rb") as other,
    ):
        timer = write_later(pipe[1], 0.3)
        work = Descriptors(queue, [other.fileno(), pipe[0], other.fileno()], memory)
        original = getattr(work, method)
        monkeypatch.setattr(work, method, fail)
        with pytest.raises(RuntimeError, match="tired"):
            queue.run(work, memory)
        assert memory[1].tobytes() == b"12345678"  # it has been waited for
        timer.join()
        os.write(pipe[1], b"abcdefgh")
        queue.run(Descriptors(queue, [pipe[0]], memory), memory)  # the queue is as good as new
        assert memory[0].tobytes() == b"abcdefgh"


@pytest.mark.parametrize("point", range(10))
def test_a_second_ctrl_c_does_not_end_the_waiting(
    xnvme: Library, pipe: tuple[int, int], point: int
) -> None:
    memory = np.zeros((1, 8), np.uint8)
    with offered(xnvme, "io_uring"), FileQueue(xnvme, "io_uring", 8) as queue:
        timer = write_later(pipe[1], 0.1)
        with pytest.raises((RuntimeError, KeyboardInterrupt)), interrupted(Tired.waiting, point):
            queue.run(Tired(queue, [pipe[0]], memory), memory)
        assert memory.tobytes() == b"12345678"
        timer.join()
        os.write(pipe[1], b"abcdefgh")
        queue.run(Descriptors(queue, [pipe[0]], memory), memory)
        assert memory.tobytes() == b"abcdefgh"


INTERRUPT = """
import os, signal, sys, threading, time
import numpy as np
from dali_storage.backends import _xnvme
from dali_storage.backends._xnvme_devices import _OPTS_READ, GEOMETRY, OPTS, Device
from dali_storage.backends._xnvme_blocks import COMMAND, MOST_BLOCKS, BlockReads
from dali_storage.backends._xnvme_files import FileQueue
from tests.test_xnvme import Descriptors
signal.signal(signal.SIGINT, signal.default_int_handler)
reader, writer = os.pipe()
memory = np.zeros((1, 8), np.uint8)
queue = FileQueue(_xnvme.load(), "io_uring", 8)
def interrupt():
    for _ in range(3):
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
    os.write(writer, b"12345678")
threading.Thread(target=interrupt).start()
try:
    queue.run(Descriptors(queue, [reader], memory), memory)
except KeyboardInterrupt:
    print("interrupted", memory.tobytes())
queue.close()
"""


def test_ctrl_c_waits_for_what_is_under_way_however_often(xnvme: Library) -> None:
    with offered(xnvme, "io_uring"):
        run = subprocess.run(
            [sys.executable, "-c", INTERRUPT],
            env=os.environ | {"XNVME_LIBRARY_PATH": xnvme.path, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.stdout == "interrupted b'12345678'\n", run.stderr


def test_a_device_that_does_not_answer_is_given_up_and_its_memory_kept(
    xnvme: Library, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned: list[Any] = []
    monkeypatch.setattr(_xnvme_queue, "_abandoned", abandoned)
    memory = np.zeros((1, 8), np.uint8)
    with offered(xnvme, "io_uring"), FileQueue(xnvme, "io_uring", 8) as files:
        queue = files._opened_queue()
        queue._patience = 0.2
        with pytest.raises(TimeoutError, match="1 commands are under way"):
            files.run(Descriptors(files, [pipe[0]], memory), memory)
        assert abandoned == [(memory, queue)]
        with pytest.raises(OSError, match="has not answered before") as caught:
            files.run(Descriptors(files, [pipe[0]], memory), memory)
        assert caught.value.errno == errno.ENODEV
        files.close()
        assert queue._pointer  # it is still there for the device to write to
        os.write(pipe[1], b"12345678")
        while not memory.any():
            queue.poll()
        queue.device.lost = False


def test_a_queue_that_cannot_be_polled_is_given_up(
    ramdisk: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_xnvme_queue, "_abandoned", [])
    monkeypatch.setattr(_xnvme_queue, "_TROUBLE", 0.1)
    with Queue(ramdisk, 4) as queue, Queue(ramdisk, 4) as other:
        poke, failures = queue.poke, iter([-errno.EAGAIN] * 3)
        queue.poke = lambda *arguments: next(failures, None) or poke(*arguments)
        work = Reads(queue, np.arange(4), 1, memory := np.zeros((4, 512), np.uint8))
        queue.run(work, memory)
        assert len(work.ended) == 4
        queue.poke = lambda *_: -errno.ENOMEM
        with pytest.raises(OSError, match="does not answer") as caught:
            queue.run(Reads(queue, np.arange(4), 1, memory), memory)
        assert caught.value.errno == errno.ENOMEM
        with pytest.raises(OSError, match="has not answered before"):
            other.run(Reads(other, np.arange(4), 1, memory), memory)
        queue.poke, ramdisk.lost = poke, False
        queue.poll()


# --- statuses ---


@pytest.mark.parametrize(
    ("status", "io", "number", "text"),
    [
        (0x281, "upcie", errno.EIO, "Unrecovered Read Error (SCT 2h, SC 81h)"),
        (0x080, "io_uring_cmd", errno.EIO, "LBA Out of Range (SCT 0h, SC 80h)"),
        (0x002, "upcie", errno.EIO, "Invalid Field in Command (SCT 0h, SC 02h)"),
        (0x1B8, "upcie", errno.EIO, "Zoned Boundary Error (SCT 1h, SC B8h)"),
        (0x371, "upcie", errno.EIO, "Command Aborted By Host (SCT 3h, SC 71h)"),
        (0x2C0, "upcie", errno.EIO, "Reserved (SCT 2h, SC C0h)"),
        (0x705, "upcie", errno.EIO, "Vendor Specific (SCT 7h, SC 05h)"),
        (0x700 | errno.EIO, "io_uring", errno.EIO, ""),
        (0x700 | errno.ENODEV, "libaio", errno.ENODEV, ""),
        (0x700 | 256 - errno.ENODEV, "io_uring_cmd", errno.ENODEV, ""),
        (0x705, "io_uring_cmd", errno.EIO, "Vendor Specific (SCT 7h, SC 05h)"),
    ],
)
def test_a_status_is_told_by_its_name(status: int, io: str, number: int, text: str) -> None:
    found, words = explain(status, io)
    assert found == number
    assert words == (f": NVMe status {text}" if text else "")
