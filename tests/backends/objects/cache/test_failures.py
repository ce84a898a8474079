"""A directory or a disk that fails costs a cache no byte and no error, but one warning."""

import errno
import os
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.objects.cache.entries import Entries
from tests.kit.bmap.files import as_nobody
from tests.kit.devices import run
from tests.kit.objects.cached import ALL, Store, StoreReader, fill, nothing_is_left, one_warning
from tests.kit.process import alone, refuse_thread, room_for

# --- opening ---


def test_a_directory_is_created_for_its_user_alone(reader, folder):
    reader.use()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.entries()} == {0o600}


def test_a_relative_path_of_a_directory_stays_where_it_was(store, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with StoreReader(store, Path(folder.name)) as reader:
        monkeypatch.chdir("/")
        reader.use()
        assert reader.use() == []


@pytest.mark.parametrize(
    ("path", "number"), [("file", errno.ENOTDIR), ("missing/cache", errno.ENOENT)]
)
def test_a_path_that_is_no_directory_is_refused(store, tmp_path, path, number):
    (tmp_path / "file").touch()
    with nothing_is_left(tmp_path), pytest.raises(OSError, match="the option cache") as caught:
        StoreReader(store, tmp_path / path)
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / path))


def test_a_directory_that_cannot_be_written_is_refused(store, small_disk):
    run("mount", "-o", "remount,ro", str(small_disk))
    with (
        nothing_is_left(small_disk),
        pytest.raises(OSError, match="writable for this user") as caught,
    ):
        StoreReader(store, small_disk)
    assert caught.value.errno == errno.EROFS


def test_the_cache_of_another_user_is_refused(folder, monkeypatch):
    if os.geteuid():
        pytest.skip("to be two users needs root: run the tests as root")
    with StoreReader(Store(), folder):
        pass
    folder.chmod(0o777)
    monkeypatch.chdir(folder.parent)  # the directories above are closed to other users
    folder.parent.chmod(0o755)
    with as_nobody():
        os.mkdir("cache/mine")
        with pytest.raises(PermissionError, match="without the cache of another user: 'cache'"):
            Entries(b"cache", None, b"")


# --- writers ---


def test_the_file_of_a_writer_that_was_killed_is_removed_after_an_hour(folder):
    with fill(folder, 1 << 30, 0, "dies") as writer:
        assert writer.wait(600) == -signal.SIGKILL
    (left,) = folder.temporary()
    store = Store((20_000,))
    store.versions = [b"0"]
    with StoreReader(store, folder) as reader:
        assert reader.use([0]) == reader.use([0]) == [0]  # it might be written just now
        os.utime(left, (time.time() - 7200,) * 2)
        assert reader.use([0]) == reader.use([0]) == [0]  # the first one removes it
        assert reader.use([0]) == []
    assert not left.exists()


def test_writers_that_are_killed_at_any_moment_leave_no_wrong_entry(folder):
    limit = 3_000_000
    for round_ in range(3):
        with fill(folder, limit, 0) as writer:
            while writer.poll() is None and len(folder.entries()) < 30 * round_:
                time.sleep(0.001)
        assert folder.occupied() <= limit
    store = Store((20_000,) * 200)
    store.versions = [b"0"] * 200
    with StoreReader(store, folder, limit) as reader:
        assert len(reader.use(np.arange(200))) < 200
        assert limit >= folder.counted() >= folder.occupied()


def test_without_a_thread_for_writing_nothing_is_added(store, folder, monkeypatch):
    with StoreReader(store, folder) as reader:
        monkeypatch.setattr(threading.Thread, "start", refuse_thread)
        with one_warning("can't start new thread; no more samples are cached"):
            assert reader.use() == [*ALL]
        assert reader.use() == [*ALL]


# --- disks ---


def test_a_full_disk_ends_the_adding(small_disk):
    with StoreReader(Store((100_000,) * 20), small_disk, 1 << 30) as reader:
        with one_warning(f"cache='{small_disk}'.*No space left"):
            reader.use(np.arange(20))
        assert small_disk.counted() == small_disk.occupied()
        reader.use(np.arange(20))
        assert reader.use(np.arange(5)) == []
    assert not small_disk.temporary()


def test_entries_that_cannot_be_read_end_the_adding(store, folder):
    def fail(fds, iovecs, offsets, flags=0):
        return np.full(len(iovecs), -errno.EIO, np.int64)

    with StoreReader(store, folder) as reader:
        reader.use()
        works, reader.cache._engine = reader.cache._engine, fail
        with one_warning("Input/output error"):
            assert reader.use() == reader.use() == [*ALL]
        reader.cache._engine = works
        assert reader.use() == [*ALL]  # nothing was added


def test_a_deleted_directory_ends_the_adding_until_the_next_reader(store, folder):
    with StoreReader(store, folder) as reader:
        reader.use(ALL[:5])
        shutil.rmtree(folder)
        with one_warning("No such file"):
            assert reader.use() == reader.use() == [*ALL]
        assert not folder.exists()
    with StoreReader(store, folder) as reader, warnings.catch_warnings():
        warnings.simplefilter("error")
        reader.use()
        assert reader.use() == []


@pytest.mark.long
@alone
def test_too_many_open_files_are_no_error(folder):
    with StoreReader(Store(), folder) as reader:
        assert reader.use() == [*ALL]
        with room_for(3):
            assert 0 < len(reader.use()) < len(ALL)
        assert reader.use() == []
