"""No reader reads in the main thread, where a Ctrl-C could interrupt it."""

import os
from contextlib import closing
from functools import partial

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
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
from dali_storage.dynamic.readers import File
from dali_storage.loaders import Loader, cifar10
from dali_storage.samples.discovery import from_directory
from dali_storage.testing.probes import require_lanes
from tests.kit.cifar_archive import write_cifar10
from tests.kit.containers import (
    write_numbered_recordios,
    write_numbered_tars,
    write_numbered_tfrecords,
)
from tests.kit.dali import pipeline_of
from tests.kit.xnvme import offered

SAMPLES = 9
COUNTS = [4, 5]  # of two containers
BACKENDS = {"python-file": PythonFileReader, "memory": MemoryReader}


def file(directory):
    for number in range(SAMPLES):
        (directory / "class").mkdir(exist_ok=True)
        (directory / "class" / f"{number}.jpg").write_bytes(bytes([number] * 8))
    return readers.file, {"file_root": str(directory)}


def numpy(directory):
    for number in range(SAMPLES):
        np.save(directory / f"{number}.npy", np.full(3, number))
    return readers.numpy, {"file_root": str(directory)}


def records(directory):
    (directory / "records").write_bytes(bytes(range(8 * SAMPLES)))
    columns = {"offsets": range(0, 8 * SAMPLES, 8), "sizes": 8}
    return readers.records, {"files": str(directory / "records"), **columns}


def webdataset(directory):
    tars, indexes = write_numbered_tars(directory, COUNTS)
    return readers.webdataset, {"paths": tars, "index_paths": indexes, "ext": ["n"]}


def tfrecord(directory):
    import nvidia.dali.tfrecord as tfrec

    files, indexes = write_numbered_tfrecords(directory, COUNTS)
    features = {"n": tfrec.FixedLenFeature((), tfrec.int64, 0)}
    return readers.tfrecord, {"path": files, "index_path": indexes, "features": features}


def mxnet(directory):
    files, indexes = write_numbered_recordios(directory, COUNTS)
    return readers.mxnet, {"path": files, "index_path": indexes}


MAKERS = (file, numpy, records, webdataset, tfrecord, mxnet)


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


def test_every_reader_is_tested():
    assert {make.__name__ for make in MAKERS} == {*readers.__all__} - {"catalog", "state"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_that_is_called_in_the_main_thread_fails(backend, tmp_path):
    catalog = from_directory(file(tmp_path)[1]["file_root"])
    with BACKENDS[backend](catalog) as reader, pytest.raises(AssertionError):
        reader.sizes(np.arange(1), 0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", MAKERS)
def test_no_pipeline_and_no_loader_reads_in_the_main_thread(make, backend, tmp_path):
    operator, arguments = make(tmp_path)

    def define(*, checkpoint, shard_id, num_shards):
        shard = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
        options = {"enable_checkpointing": True, "checkpoint": checkpoint}
        operation = partial(operator, name="Reader", backend=backend, **shard, **arguments)
        return pipeline_of(lambda: _outputs(operation()), **options)

    pipeline = define(checkpoint=None, shard_id=0, num_shards=1)
    for _ in range(4):
        assert len(pipeline.run()[0]) == 4
    with Loader(define, to="numpy") as loader:
        for _ in range(2):
            assert sum(len(first) for first, *_ in loader) == SAMPLES


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


def test_the_dynamic_mode_does_not_read_in_the_main_thread(tmp_path):
    _, arguments = file(tmp_path)
    with File(**arguments) as reader:
        assert isinstance(reader, ndd.readers.File)
        assert sum(1 for _ in reader.next_epoch()) == SAMPLES


def _outputs(found):
    """What a reader returns, as a list."""
    if isinstance(found, dict):
        return [*found.values()]
    return [*found] if isinstance(found, (tuple, list)) else [found]
