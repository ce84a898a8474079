"""NFS 4.2 of this kernel's server and client; the right bytes are those of the server's files."""

import errno
import os
import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.linux import uring
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import ContainerChangedError, SampleSizeChanged
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import SIZES, read
from dali_storage.testing.packing import packed_contents, write_packed
from tests.kit.devices import run

ALL = np.arange(len(SIZES))
NFSD = Path("/proc/fs/nfsd")
TIMEOUT = 300.0  # seconds


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The directory that the server exports. Just started, it has a grace period of 90 s."""
    directory = tmp_path_factory.mktemp("server")
    run("ip", "link", "set", "lo", "up")
    network("delay", "0.5ms")
    run("mount", "-t", "nfsd", "nfsd", str(NFSD))
    run("exportfs", "-o", "rw,no_root_squash,fsid=0", f"127.0.0.1:{directory}")
    run("rpc.mountd", "--no-nfs-version", "3")
    run("rpc.nfsd", "--no-nfs-version", "3", "8")
    return directory


def network(*words):
    """Delay or lose what the client and the server send each other."""
    run("tc", "qdisc", "replace", "dev", "lo", "root", "netem", *words)


@pytest.fixture
def mount(server, tmp_path):
    """Plants files on the server, and mounts them: gives their directory there, and a catalog."""

    def mount(*options, packed=False):
        root = server / str(len(list(server.iterdir())))
        (root / "class").mkdir(parents=True)
        random = np.random.default_rng(1)
        for sample, size in enumerate(() if packed else SIZES):
            (root / "class" / f"{sample:02d}").write_bytes(random.bytes(size))
        catalog = write_packed(root) if packed else from_directory(root, file_filters="*")
        options = ",".join(("vers=4.2", "nosharecache", *options))
        run("mount", "-o", options, f"127.0.0.1:/{root.name}", str(tmp_path))
        return root / "class", replace(catalog, root=os.fsencode(tmp_path))

    yield mount
    run("umount", "--lazy", str(tmp_path))


def contents(directory):
    return [path.read_bytes() for path in sorted(directory.iterdir())]


@pytest.fixture
def cancelled(monkeypatch):
    """Set when the reader cancels io_uring's calls: here after a second without a completion."""
    event, register = threading.Event(), uring.Ring._register

    def notice(ring, what, *arguments):
        if what == uring._SYNC_CANCEL:
            event.set()
        register(ring, what, *arguments)

    monkeypatch.setattr(uring, "_STALL_S", 1)
    monkeypatch.setattr(uring.Ring, "_register", notice)
    return event


@pytest.mark.parametrize("outage", ["grace period", "no answer"])
def test_a_server_is_waited_for(mount, cancelled, outage):
    """io_uring's opens are cancelled in a grace period, and made again in another way."""
    directory, catalog = mount()
    with PythonFileReader(catalog) as reader, ThreadPoolExecutor(1) as pool:
        if outage == "no answer":
            network("loss", "100%")
        reading = pool.submit(read, reader, ALL)
        assert cancelled.wait(TIMEOUT)
        assert not reading.done()
        if outage == "no answer":
            network("delay", "0.5ms")
        else:
            (NFSD / "v4_end_grace").write_text("Y")
        assert reading.result() == contents(directory)


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("io", [None, "aio", "preadv"])
def test_files_are_those_of_the_server(mount, tmp_path, io, direct):
    directory, catalog = mount()
    with PythonFileReader(catalog, io=io, direct=direct) as reader:
        assert read(reader, ALL) == contents(directory)
    statistics = Path("/proc/self/mountstats").read_text().partition(f" on {tmp_path} ")[2]
    (around_the_cache,) = re.findall(r"bytes:\t\d+ \d+ (\d+)", statistics)[:1]
    assert (int(around_the_cache) >= sum(SIZES)) == direct


@pytest.mark.parametrize("direct", [False, True])
def test_containers_are_those_of_the_server_until_one_changes(mount, direct):
    directory, catalog = mount("actimeo=1", packed=True)
    with PythonFileReader(catalog, direct=direct) as reader:
        assert read(reader, ALL, catalog) == packed_contents()
        (directory / "container0").write_bytes(bytes((directory / "container0").stat().st_size))
        with pytest.raises(ContainerChangedError, match=r"/container0'$"):
            while True:  # for as long as the client may keep attributes: a second
                read(reader, ALL, catalog)


@pytest.mark.parametrize("direct", [False, True])
def test_changed_files_are_read_as_they_are_now(mount, direct):
    directory, catalog = mount("noac")
    replaced, overwritten, truncated, grown, deleted = sorted(directory.iterdir())[-5:]
    with PythonFileReader(catalog, direct=direct) as reader:
        assert read(reader, ALL) == contents(directory)
        new = directory.parent / "new"
        new.write_bytes(bytes(replaced.stat().st_size))
        new.rename(replaced)
        overwritten.write_bytes(bytes(overwritten.stat().st_size))
        os.truncate(truncated, 100)
        grown.write_bytes(grown.read_bytes() + b"more")
        with pytest.raises(SampleSizeChanged):
            read(reader, ALL)
        assert read(reader, ALL) == contents(directory)
        deleted.unlink()
        with pytest.raises(FileNotFoundError, match=f"/{deleted.name}'$"):
            read(reader, ALL)


def test_stale_file_handles_are_errors(mount):
    directory, catalog = mount()
    with PythonFileReader(catalog) as reader:
        shutil.rmtree(directory.parent)  # which is mounted
        with pytest.raises(OSError, match="/class/") as caught:
            read(reader, ALL)
        assert caught.value.errno == errno.ESTALE
