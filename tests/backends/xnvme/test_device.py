import errno
import gc
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from dali_storage.backends.xnvme.abi import GEOMETRY, OPTS
from dali_storage.backends.xnvme.device import LIBRARY_LOCK
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.testing.probes import raises_naming
from tests.kit.mapped import nothing_stays_open
from tests.kit.process import alone, status_of_fork
from tests.kit.xnvme import access_mode, open_file, open_ramdisk


def test_files_are_opened_read_only(xnvme, io, file):
    with closing(open_file(xnvme, file, io=io)) as device:
        assert device.io == io
        assert os.path.samefile(f"/proc/self/fd/{device.descriptor}", file)
        assert access_mode(device.descriptor) == os.O_RDONLY


def test_a_path_that_cannot_be_opened_is_named(xnvme, tmp_path):
    with raises_naming(FileNotFoundError, tmp_path / "missing"):
        open_file(xnvme, tmp_path / "missing")
    with pytest.raises(OSError) as caught:
        open_file(xnvme, "x" * 1000)
    assert caught.value.errno == errno.EINVAL


def test_an_implementation_that_is_not_there_is_an_error(xnvme, file):
    with pytest.raises(OSError, match="libxnvme cannot open it"):
        open_file(xnvme, file, io="no_such_io")


def test_direct_is_never_dropped(xnvme, file):
    with closing(open_file(xnvme, file, direct=True)) as device:
        flags = Path(f"/proc/self/fdinfo/{device.descriptor}").read_text().split()[3]
        assert int(flags, 8) & os.O_DIRECT
    refused = raises_naming(OSError, "/proc/version", "direct=1")  # libxnvme opens it without
    with nothing_stays_open("/proc/version"), refused as caught:
        open_file(xnvme, "/proc/version", direct=True)
    assert caught.value.errno == errno.EINVAL


def test_an_implementation_is_never_replaced(xnvme, file):
    with closing(open_file(xnvme, file, io="emu")) as device:
        wanted = np.zeros((), OPTS)
        wanted["rdonly"] = 1
        assert device._check(b"uri", wanted, "emu") == "emu"
        with pytest.raises(OSError, match="'emu', not 'io_uring'"):
            device._check(b"uri", wanted, "io_uring")


def test_the_geometry_of_a_device(ramdisk):
    geometry = ramdisk.geometry()
    assert (geometry.kind, geometry.size, geometry.lba_bytes) == ("conventional", 1 << 30, 512)
    assert geometry.max_transfer == 1 << 20  # libxnvme's word for no limit
    assert not geometry.has_metadata
    assert ramdisk.nsid == 1


def test_a_device_without_a_geometry_is_refused(ramdisk, monkeypatch):
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


def test_memory_is_freed_when_the_last_slice_is_gone_and_the_device_after_it(
    xnvme, file, monkeypatch
):
    gc.collect()  # what other tests have left
    free, close = Mock(wraps=xnvme.xnvme_buf_free), Mock(wraps=xnvme.xnvme_file_close)
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
    assert not free.called | close.called
    address = last.ctypes.data - 210
    del last
    free.assert_called_once_with(device.pointer, address)
    close.assert_called_once_with(device.pointer)
    with pytest.raises(ValueError, match="closed"):
        device.allocate(1)


def test_libxnvme_makes_or_ends_one_thing_at_a_time(xnvme, monkeypatch):
    at_once, called = [0], []

    def watch(name, function):
        def call(*arguments):
            at_once[0] += 1
            called.append((name, at_once[0]))
            time.sleep(0.001)
            result = function(*arguments)
            at_once[0] -= 1
            return result

        monkeypatch.setattr(xnvme, name, call, raising=False)

    def make_and_end(_):
        for _ in range(4):
            with closing(open_ramdisk(xnvme, "emu")) as device, closing(Queue(device, 1)):
                device.geometry()
                device.allocate(1)

    functions = ["dev_open", "dev_close", "dev_get_geo", "buf_alloc", "buf_free"]
    names = {f"xnvme_{name}" for name in [*functions, "queue_init", "queue_term"]}
    for name in names:
        watch(name, getattr(xnvme, name))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(make_and_end, range(4)))
    gc.collect()
    assert {name for name, _ in called} == names
    assert {number for _, number in called} == {1}


@alone
def test_a_forked_process_can_open_its_own(xnvme):
    held = threading.Event()

    def hold():
        with LIBRARY_LOCK:
            held.set()
            time.sleep(1)

    threading.Thread(target=hold).start()
    held.wait()
    assert status_of_fork(lambda: open_ramdisk(xnvme, "emu").close()) == 0


@alone
def test_a_forked_process_ends_nothing(xnvme, monkeypatch):
    ended = []
    for name in ("xnvme_buf_free", "xnvme_dev_close", "xnvme_queue_term"):
        monkeypatch.setattr(xnvme, name, lambda *_, name=name: ended.append(name), raising=False)
    opened = [open_ramdisk(xnvme, "emu")]
    opened += [Queue(opened[0], 1), opened[0].allocate(1)]

    def end(error, message):
        with pytest.raises(error, match=message):
            opened[1].run(None, opened[2])
        opened[1].close()
        opened[0].close()
        del opened[:]
        gc.collect()
        return sorted(ended)

    refused = RuntimeError, "a libxnvme reader cannot be used after a fork: open a new one"
    assert status_of_fork(lambda: end(*refused) == []) == 0
    everything = ["xnvme_buf_free", "xnvme_dev_close", "xnvme_queue_term"]
    assert end(AttributeError, "'NoneType' object has no attribute 'count'") == everything


def test_a_lack_of_memory_is_reported_with_a_remedy(ramdisk):
    with pytest.raises(MemoryError, match=r"vm\.nr_hugepages"):
        ramdisk.allocate(1 << 60)
