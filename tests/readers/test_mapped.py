"""Containers that are mapped (io="mmap"), beside the real readers of DALI."""

import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import nvidia.dali
import pytest
from nvidia.dali import fn, tfrecord, types

from dali_storage import readers
from dali_storage.backends.files.mapped import MappedFiles
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import NotMapped
from tests.kit.containers import (
    bytes_feature,
    example,
    int64_feature,
    write_tar,
    write_tfrecord,
)
from tests.kit.dali import pipeline_of

MAPPED = {"backend_options": {"io": "mmap"}}


@pytest.fixture
def containers(jpegs, tmp_path):
    """The arguments of the readers of containers with the same 30 images."""
    images = [path.read_bytes() for path in sorted(jpegs.glob("*/*.jpg"))]
    samples, groups = [*enumerate(images)], (slice(0, 12), slice(12, 30))
    tars, records, indexes = [], [], []
    for number, group in enumerate(groups):
        members, payloads = [], []
        for label, image in samples[group]:
            members += [(f"{label}.jpg", image), (f"{label}.cls", np.int32(label).tobytes())]
            features = {"image": bytes_feature([image]), "label": int64_feature([label])}
            payloads.append(example(features))
        tars.append(str(write_tar(tmp_path / f"{number}.tar", members)))
        records.append(str(tmp_path / f"{number}.tfrecord"))
        indexes.append(str(tmp_path / f"{number}.idx"))
        write_tfrecord(Path(records[-1]), payloads, Path(indexes[-1]))
    features = {"image": tfrecord.FixedLenFeature((), tfrecord.string, "")}
    features["label"] = tfrecord.FixedLenFeature([1], tfrecord.int64, -1)
    return {
        "webdataset": {"paths": tars, "ext": ["jpg", "cls"], "dtypes": [types.UINT8, types.INT32]},
        "tfrecord": {"path": records, "index_path": indexes, "features": features},
    }


def outputs(module, name, arguments, batches):
    def define():
        found = getattr(module, name)(**arguments)
        data, labels = found.values() if isinstance(found, dict) else found
        return fn.decoders.image(data), fn.peek_image_shape(data), labels

    pipeline = pipeline_of(define)
    found = [pipeline.run() for _ in range(batches)]
    return [np.asarray(out[slot]).tolist() for batch in found for out in batch for slot in range(4)]


@pytest.mark.parametrize("order", [{}, {"random_shuffle": True, "seed": 7, "initial_fill": 8}])
@pytest.mark.parametrize("name", ["webdataset", "tfrecord"])
def test_mapped_containers_are_delivered_as_dali_does_and_not_read(
    containers, name, order, monkeypatch
):
    arguments = containers[name] | order
    expected = outputs(fn.readers, name, arguments, 25)
    hot = list[bool]()
    usage = SimpleNamespace(ru_majflt=0)  # nobody waits for a page
    monkeypatch.setattr(resource, "getrusage", lambda _: usage)
    ask = PythonFileReader.hot
    monkeypatch.setattr(PythonFileReader, "hot", lambda *it: hot.append(ask(*it)) or hot[-1])
    monkeypatch.setattr(PythonFileReader, "read", None)
    assert outputs(readers, name, arguments | MAPPED, 25) == expected
    assert not hot[0]
    assert hot[-1]


def add_one(array):
    array += 1
    return array


@pytest.fixture
def asked(monkeypatch):
    """Whether there were views, for each batch for which the reader was asked."""
    found, views = [], MappedFiles.views

    def ask(*arguments):
        result = views(*arguments)
        found.append(result is not None)
        return result

    monkeypatch.setattr(MappedFiles, "views", ask)
    return found


def written_in_each_epoch(arguments, use, batch_size, **options):
    """The bytes of the samples in each of 4 epochs, after a program has written into each."""
    pipeline = pipeline_of(
        lambda: use(*readers.webdataset(**arguments)), batch_size=batch_size, **options
    )
    epochs = []
    for _ in range(4):
        epochs.append([])
        for _ in range(30 // batch_size):
            data, *_ = pipeline.run()
            arrays = [np.asarray(data[slot]) for slot in range(batch_size)]
            epochs[-1] += [each.tobytes() for each in arrays]
            for each in arrays:
                each[:] = 7
    return epochs


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 30])
def test_what_leaves_the_pipeline_may_be_written_to(
    containers, batch_size, dynamic, asked, recwarn
):
    """It is a view only if DALI copies it: a list of two samples or more; not in 2.0 to 2.2."""
    arguments = containers["webdataset"]
    read = arguments | {"dont_use_mmap": True}
    expected = written_in_each_epoch(read, lambda *outputs: outputs, batch_size)
    assert not asked
    found = written_in_each_epoch(
        arguments, lambda *outputs: outputs, batch_size, exec_dynamic=dynamic
    )
    assert found == expected == expected[:1] * 4
    uncopied = dynamic and nvidia.dali.__version__.startswith(("2.0", "2.1", "2.2"))
    assert any(asked) == (batch_size > 1 and not uncopied)
    assert not [it for it in recwarn if it.category is NotMapped]


@pytest.mark.parametrize(
    "use",
    [
        lambda data: fn.reshape(data, shape=[-1]),
        lambda data: fn.reinterpret(data, dtype=types.INT8),
        lambda data: fn.squeeze(fn.expand_dims(data, axes=[0]), axes=[0]),
    ],
    ids=["reshape", "reinterpret", "dimensions"],
)
def test_an_operator_that_passes_memory_on_has_a_copy(containers, use, asked):
    def add(data, labels):
        return fn.python_function(use(data), function=add_one), labels

    epochs = written_in_each_epoch(containers["webdataset"], add, 30)
    assert epochs == epochs[:1] * 4
    assert not asked
    with pytest.warns(NotMapped, match="operators other than decoders use its outputs"):
        written_in_each_epoch(containers["webdataset"] | MAPPED, add, 30)
