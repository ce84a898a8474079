from __future__ import annotations

import contextlib
import errno
import gc
import os
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.files import opening
from dali_storage.backends.linux import libc
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.samples.discovery import from_files
from dali_storage.testing import read
from tests.kit.interrupts import interrupted
from tests.kit.process import descriptors


def test_files_that_are_not_on_a_local_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No system call holds the interpreter lock there."""
    assert opening.is_local(os.fsencode(tmp_path))
    assert not opening.is_local(b"/proc")
    assert not opening.is_local(b"/no/such/directory")
    monkeypatch.setattr(opening, "_LOCAL", frozenset())
    monkeypatch.setattr(libc, "openat2_with_gil", None)
    monkeypatch.setattr(libc, "statx_with_gil", None)
    contents = [bytes([index]) * 5000 * index for index in range(5)]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}").write_bytes(content)
    with PythonFileReader(from_files([f"{tmp_path}/{index}" for index in range(5)])) as reader:
        assert read(reader, np.arange(5)) == contents
        assert read(reader, np.arange(5)) == contents


def test_a_kernel_without_openat2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    monkeypatch.setattr(opening, "_OPENAT2", 100_000)  # ENOSYS
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.array([0, 0])) == [b"bytes"] * 2


def test_exactly_the_given_descriptors_are_closed() -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    before, still_open = len(descriptors("/dev/null")), set(fds)
    for closed in ([], [-1, -1], [fds[3]], [fds[0], -1, fds[7], fds[1], fds[5]]):
        opening.close_all(closed)
        still_open -= set(closed)
        assert {fd for fd in fds if os.path.lexists(f"/proc/self/fd/{fd}")} == still_open
        assert len(descriptors("/dev/null")) == before - len(fds) + len(still_open)
    opening.close_all(still_open)


@pytest.mark.parametrize("point", range(1, 20))
def test_ctrl_c_while_closing_leaves_no_descriptor_open(point: int) -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    with contextlib.suppress(KeyboardInterrupt), interrupted(opening.close_all, point):
        opening.close_all([-1, *fds[:3], *fds[5:]])
    still_open = [fd for fd in fds if os.path.lexists(f"/proc/self/fd/{fd}")]
    opening.close_all(still_open)
    assert still_open == fds[3:5]


@pytest.mark.parametrize("point", range(40))
@pytest.mark.parametrize("opened", [0, 1, 8])
def test_ctrl_c_leaves_none_of_the_open_files_open(opened: int, point: int) -> None:
    def use() -> None:
        pass

    def run() -> None:
        with opening.open_files() as fds:
            fds += opener
            use()

    before = descriptors("/dev/null")
    opener = map(os.open, ["/dev/null"] * opened, [os.O_RDONLY] * opened)
    with contextlib.suppress(KeyboardInterrupt), interrupted(use, point):
        run()
    gc.collect()
    assert descriptors("/dev/null") <= before


def test_an_open_file_that_cannot_be_sized_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        opening.regular_sizes([1_000_000], [b"the/path"], local=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "the/path")
