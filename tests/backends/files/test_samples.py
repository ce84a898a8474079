import errno
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from dali_storage.backends.files import opening
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.file_reading import write_files
from tests.kit.process import alone, descriptors, room_for
from tests.kit.tiers import by_tier
from tests.kit.xnvme import require_io

CONTENTS = [bytes([index]) * (1000 * (index % 5)) for index in range(200)]


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """Files of `CONTENTS`; lanes wait for each other."""
    monkeypatch.setattr(opening, "_PATIENCE_S", 600)
    return write_files(tmp_path, CONTENTS)


def is_read_right(reader, lane=0, rounds=1):
    return all(read(reader, np.arange(200), lane=lane) == CONTENTS for _ in range(rounds))


def require_few_descriptors(open_reader):
    for files in (50, 2, 1):
        with open_reader() as reader, room_for(files):
            assert is_read_right(reader)  # every file is sized first
            assert is_read_right(reader)
    with ExitStack() as opened, ThreadPoolExecutor(99) as threads:
        readers = [opened.enter_context(open_reader()) for _ in range(3)]
        lanes = [
            (reader, lane, by_tier(1, 3)) for reader in readers for lane in range(reader.lanes)
        ]
        with room_for(5):
            assert all(threads.map(is_read_right, *zip(*lanes, strict=True)))


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"io": "preadv"}, {"io": "aio"}, {"io": "io_uring"}, {"direct": True}], ids=str
)
@alone
def test_few_descriptors_are_enough_for_files(catalog, options):
    require_few_descriptors(lambda: PythonFileReader(catalog, lanes=4, **options))


@pytest.mark.parametrize("options", [{"io": "io_uring"}, {"io": "emu", "queue_depth": 4}], ids=str)
@alone
def test_few_descriptors_are_enough_for_libxnvme(xnvme, catalog, options):
    require_io(xnvme, options["io"])
    require_few_descriptors(lambda: XnvmeFileReader(catalog, **options))


@alone
@pytest.mark.long
def test_no_descriptor_at_all_is_an_error_that_names_file_and_limit(catalog, monkeypatch):
    with PythonFileReader(catalog, lanes=1) as reader:
        assert is_read_right(reader)
        monkeypatch.setattr(opening, "_PATIENCE_S", 0.1)
        with room_for(0), raises_naming(OSError, catalog.path(0), "ulimit -n") as caught:
            is_read_right(reader)
        assert caught.value.errno == errno.EMFILE
        assert is_read_right(reader)


def test_a_file_whose_size_another_lane_finds_changed_is_sized_again(tmp_path, monkeypatch):
    with PythonFileReader(write_files(tmp_path, [b"a" * 100, b"b" * 100])) as reader:
        read(reader, np.array([0]))

        def meanwhile(fds, paths, local):
            reader._files.forget(np.array([0]))  # as read() in another lane does
            monkeypatch.undo()
            return regular_sizes(fds, paths, local)

        regular_sizes = opening.regular_sizes
        monkeypatch.setattr(opening, "regular_sizes", meanwhile)
        assert reader.sizes(np.array([0, 1]), 0).tolist() == [100, 100]


def test_files_that_were_sized_and_not_read_do_not_stay_open(tmp_path):
    with PythonFileReader(write_files(tmp_path, [bytes(100)] * 100)) as reader:
        reader.sizes(np.arange(100), 0)
        assert len(descriptors(tmp_path)) == 64
        reader.sizes(np.arange(3), 0)
        assert not descriptors(tmp_path)
        reader._files.forget(np.arange(100))
        reader.sizes(np.arange(50), 0)
    assert not descriptors(tmp_path)
