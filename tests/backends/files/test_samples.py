import subprocess
import sys

import numpy as np
import pytest

from dali_storage.backends.files import opening
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.samples.discovery import from_files
from dali_storage.testing import read
from tests.kit.paths import ROOT
from tests.kit.process import descriptors
from tests.kit.tiers import by_tier
from tests.kit.xnvme import require_io

FEW_FILES = """
import errno, sys, threading
import numpy as np
from dali_storage.samples.discovery import from_files
from dali_storage.backends.files import opening
from dali_storage.testing import read
from tests.kit.process import room_for

opening._PATIENCE_S = 600  # lanes wait for each other
contents = [bytes([index]) * (1000 * (index % 5)) for index in range(200)]
catalog = from_files([f"{sys.argv[1]}/{index}" for index in range(200)])

def read_all(reader, lane=0):
    samples = np.arange(200)
    assert read(reader, samples, lane=lane) == contents
"""

ONE_LANE = """
for files in (50, 2, 1):
    with open_reader() as reader, room_for(files):
        read_all(reader)  # every file is sized first
        read_all(reader)
print("read")
"""

MANY_LANES = f"""
rounds, failures = {by_tier(1, 3)}, []

def read_some(reader, lane):
    try:
        for _ in range(rounds):
            read_all(reader, lane)
    except BaseException as error:
        failures.append(error)

readers = [open_reader() for _ in range(3)]
with room_for(5):
    threads = [
        threading.Thread(target=read_some, args=(reader, lane))
        for reader in readers
        for lane in range(reader.lanes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert not failures, failures
print("read")
"""

NO_FILES = """
with open_reader() as reader:
    read_all(reader)
    opening._PATIENCE_S = 0.1
    with room_for(0):
        try:
            read_all(reader)
        except OSError as error:
            failure = error
    opening._PATIENCE_S = 600
    assert (failure.errno, failure.filename) == (errno.EMFILE, f"{sys.argv[1]}/0")
    assert "(ulimit -n)" in str(failure)
    read_all(reader)
print("read")
"""


@pytest.fixture
def folder(tmp_path):
    for index in range(200):
        (tmp_path / str(index)).write_bytes(bytes([index]) * (1000 * (index % 5)))
    return tmp_path


def run(folder, scripts, opened):
    module = "python_file" if "Python" in opened else "xnvme_file"
    program = (
        f"{FEW_FILES}\nfrom dali_storage.backends.{module} import *\nopen_reader = lambda: {opened}"
    )
    command = [sys.executable, "-c", "\n".join((program, *scripts)), folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT)
    assert done.stdout == len(scripts) * "read\n", done.stderr


@pytest.mark.parametrize(
    "options",
    [
        "io='preadv'",
        *(pytest.param(it, marks=pytest.mark.long) for it in ("io='aio'", "direct=True")),
    ],
)
def test_few_descriptors_are_enough_for_files(folder, options):
    run(folder, [ONE_LANE, MANY_LANES], f"PythonFileReader(catalog, {options})")


@pytest.mark.parametrize("options", ["io='io_uring'", "io='emu', queue_depth=4"])
def test_few_descriptors_are_enough_for_libxnvme(xnvme, folder, options):
    require_io(xnvme, options.split("'")[1])
    run(folder, [ONE_LANE, MANY_LANES], f"XnvmeFileReader(catalog, {options})")


def test_no_descriptor_at_all_is_an_error_that_names_file_and_limit(folder):
    run(folder, [NO_FILES], "PythonFileReader(catalog, lanes=1)")


def test_a_file_whose_size_another_lane_finds_changed_is_sized_again(tmp_path, monkeypatch):
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 100)
    with PythonFileReader(from_files([str(tmp_path / "a"), str(tmp_path / "b")])) as reader:
        read(reader, np.array([0]))

        def meanwhile(fds, paths, local):
            reader._files.forget(np.array([0]))  # as read() in another lane does
            monkeypatch.undo()
            return opening.regular_sizes(fds, paths, local)

        monkeypatch.setattr("dali_storage.backends.files.samples.regular_sizes", meanwhile)
        assert reader.sizes(np.array([0, 1]), 0).tolist() == [100, 100]


def test_files_that_were_sized_and_not_read_do_not_stay_open(tmp_path):
    for index in range(100):
        (tmp_path / str(index)).write_bytes(bytes(100))
    catalog = from_files([f"{tmp_path}/{index}" for index in range(100)])
    with PythonFileReader(catalog) as reader:
        reader.sizes(np.arange(100), 0)
        assert len(descriptors(tmp_path)) == 64
        reader.sizes(np.arange(3), 0)
        assert not descriptors(tmp_path)
        reader._files.forget(np.arange(100))
        reader.sizes(np.arange(50), 0)
    assert not descriptors(tmp_path)
