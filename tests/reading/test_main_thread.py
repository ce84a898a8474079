"""No reader reads in the main thread, where a Ctrl-C could interrupt it."""

import os
from contextlib import closing

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.linux import aio
from dali_storage.backends.linux.aio import AioContext
from dali_storage.backends.memory import MemoryReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.backends.xnvme.file_queue import FileQueue
from dali_storage.backends.xnvme.namespace import open_namespace
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.contract.reader import Reader
from dali_storage.loaders import Loader, cifar10
from dali_storage.samples.discovery import from_directory
from dali_storage.testing.probes import require_lanes
from tests.kit.cifar_archive import write_cifar10
from tests.kit.parity import build, numbered
from tests.kit.xnvme import offered

READERS = sorted(it for it in readers.__all__ if hasattr(getattr(readers, it), "spec"))
READERS.remove("mix")  # which is made of the others
BACKENDS = {"python-file": PythonFileReader, "memory": MemoryReader}


def backends_of(base):
    for backend in base.__subclasses__():
        yield backend
        yield from backends_of(backend)


@pytest.fixture(autouse=True)
def lanes_only(monkeypatch):
    """All readers of the product fail in the main thread."""
    for backend in backends_of(Reader):
        if backend.__module__.startswith("dali_storage."):
            require_lanes(monkeypatch, backend, "sizes", "read")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_is_called_in_the_main_thread_fails(backend, tree):
    catalog = from_directory(tree(9))
    with BACKENDS[backend](catalog) as reader, pytest.raises(AssertionError):
        reader.sizes(np.arange(1), 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reader", READERS)
def test_no_pipeline_and_no_loader_reads_in_the_main_thread(reader, backend, tmp_path):
    operator = numbered(reader, tmp_path / "data", [4, 5])(readers)

    def define(*, checkpoint, shard_id, num_shards):
        shard = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
        options = {"enable_checkpointing": True, "checkpoint": checkpoint}
        return build(operator, 4, options, name="Reader", backend=backend, **shard)

    pipeline = define(checkpoint=None, shard_id=0, num_shards=1)
    for _ in range(4):
        assert len(pipeline.run()[0]) == 4
    with Loader(define, to="numpy") as loader:
        for _ in range(2):
            assert sum(len(numbers) for (numbers,) in loader) == 9


def test_a_loader_of_cifar_does_not_read_in_the_main_thread(tmp_path):
    write_cifar10(tmp_path, rows=8)
    options = {"device": "cpu", "num_threads": 1, "to": "numpy"}
    with cifar10(tmp_path, "train", batch_size=8, **options) as loader:
        assert sum(len(labels) for _, labels in loader) == 40


def test_the_engines_do_not_read_in_the_main_thread_while_readers_are_opened(
    xnvme, tmp_path, monkeypatch
):
    require_lanes(monkeypatch, Queue, "run")
    require_lanes(monkeypatch, AioContext, "read")
    (tmp_path / "image").write_bytes(content := os.urandom(1 << 20))
    with offered(xnvme, "emu"):
        FileQueue(xnvme, "emu", 4).close()
    opened = open_namespace(
        xnvme, str(tmp_path / "image"), io="emu", nsid=1, queues=1, queue_depth=2, spin=False
    )
    with closing(opened) as namespace:
        assert namespace.read(4096, 8192) == content[4096:12288]
    assert aio.unavailable(48) is None


@pytest.mark.dali("2.2")
def test_the_dynamic_mode_does_not_read_in_the_main_thread(tree):
    from dali_storage.dynamic.readers import File

    with File(file_root=str(tree(9))) as reader:
        assert sum(1 for _ in reader.next_epoch()) == 9
