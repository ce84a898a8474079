import contextlib
import errno
import gc
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest

from dali_storage.backends.files import opening
from dali_storage.backends.linux import engines, libc
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.catalog import open_regular
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import fill, make_known_batch, read
from dali_storage.testing.probes import raises_naming
from tests.kit.file_reading import write_files
from tests.kit.interrupts import interrupted
from tests.kit.process import descriptors, leased


def test_a_remote_file_system_is_read_without_the_interpreter_lock(tmp_path, monkeypatch):
    assert opening.is_local(os.fsencode(tmp_path))
    assert not opening.is_local(b"/proc")
    assert not opening.is_local(b"/no/such/directory")
    monkeypatch.setattr(opening, "_LOCAL", frozenset())
    monkeypatch.setattr(libc, "openat2_with_gil", None)
    monkeypatch.setattr(libc, "statx_with_gil", None)
    contents = [bytes([index]) * 5000 * index for index in range(5)]
    files, rows = write_files(tmp_path, contents), np.arange(5)
    containers = replace(files, ranges=Ranges.of_columns(rows, rows * 0, rows * 5000))
    for catalog in (files, containers):
        with PythonFileReader(catalog) as reader:
            assert read(reader, rows, catalog) == contents
            assert read(reader, rows, catalog) == contents


@pytest.mark.parametrize("how", [*get_args(engines.Io), "direct", "containers"])
def test_a_file_under_a_lease_is_read_when_the_lease_ends(how, tmp_path):
    contents = [bytes([index]) * 700 for index in range(3)]
    catalog, rows = write_files(tmp_path, contents), np.arange(3)
    if how == "containers":
        catalog = replace(catalog, ranges=Ranges.of_columns(rows, rows * 0, rows * 0 + 700))
    options = {"io": how} if how in get_args(engines.Io) else {"direct": how == "direct"}
    with PythonFileReader(catalog, **options) as reader, leased(tmp_path / "1", tmp_path / "2"):
        assert read(reader, rows, catalog) == contents


def test_a_list_under_a_lease_is_read_when_the_lease_ends(tmp_path):
    (tmp_path / "list").write_bytes(b"a 0\n")
    with leased(tmp_path / "list"), open_regular(os.fsencode(tmp_path / "list")) as file:
        assert file.read() == b"a 0\n"


def test_inodes_may_have_64_bits(one_file, monkeypatch):
    """Those of rclone are hashes. They are kept as statx(2) gives them."""
    inode, fstat = 2**64 - 17, os.fstat

    def hashed(fd):
        real = fstat(fd)
        fields = {name: getattr(real, name) for name in dir(real) if name.startswith("st_")}
        return SimpleNamespace(**fields | {"st_ino": inode})

    path = one_file.path(0)
    monkeypatch.setattr(os, "fstat", hashed)
    with opening.open_files() as fds:
        fds.append(os.open(path, os.O_RDONLY))
        status = opening.statuses(fds, [path], local=False)
    assert status["inode"].view(np.uint64) == inode
    assert status["size"] == len(b"bytes")


def test_files_are_opened_by_a_kernel_without_openat2(one_file, monkeypatch):
    monkeypatch.setattr(opening, "_OPENAT2", 100_000)  # ENOSYS
    with PythonFileReader(one_file) as reader:
        assert read(reader, np.array([0, 0])) == [b"bytes"] * 2


@pytest.fixture
def fds(file):
    """Descriptors of a file that nothing else opens."""
    opened = [os.open(file, os.O_RDONLY) for _ in range(8)]
    yield opened
    for fd, _ in descriptors(file):
        os.close(fd)


def numbers(file):
    return {fd for fd, _ in descriptors(file)}


def test_exactly_the_given_descriptors_are_closed(fds, file):
    still_open = set(fds)
    for closed in ([], [-1, -1], [fds[3]], [fds[0], -1, fds[7], fds[1], fds[5]]):
        opening.close_all(closed)
        still_open -= set(closed)
        assert numbers(file) == still_open


@pytest.mark.parametrize("point", range(1, 20))
def test_ctrl_c_while_closing_leaves_no_descriptor_open(fds, file, point):
    with contextlib.suppress(KeyboardInterrupt), interrupted(opening.close_all, point):
        opening.close_all([-1, *fds[:3], *fds[5:]])
    assert numbers(file) == set(fds[3:5])


@pytest.mark.parametrize("point", range(40))
@pytest.mark.parametrize("opened", [0, 1, 8])
def test_ctrl_c_leaves_none_of_the_open_files_open(file, opened, point):
    def use():
        pass

    def run():
        with opening.open_files() as fds:
            fds += opener
            use()

    opener = map(os.open, [file] * opened, [os.O_RDONLY] * opened)
    with contextlib.suppress(KeyboardInterrupt), interrupted(use, point):
        run()
    gc.collect()
    assert not descriptors(file)


def test_an_open_file_that_cannot_be_sized_is_named():
    with raises_naming(OSError, "the/path") as caught:
        opening.regular_sizes([1_000_000], [b"the/path"], local=True)
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("direct", [False, True])
def test_a_directory_in_the_place_of_a_file_is_named(one_file, direct):
    with PythonFileReader(one_file, direct=direct) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(one_file.path(0))
        os.mkdir(one_file.path(0))
        with raises_naming(IsADirectoryError, one_file.path(0)):
            fill(reader, batch)
