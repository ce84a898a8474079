"""Containers that are mapped (io="mmap"), beside the real readers of DALI."""

import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from nvidia.dali import fn, tfrecord, types

from dali_storage import readers
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


@pytest.mark.parametrize("use", ["output", "function"])
def test_outputs_that_somebody_can_write_to_are_copied_with_a_warning(containers, use):
    def define():
        data, labels = readers.webdataset(**containers["webdataset"], **MAPPED)
        return (data if use == "output" else fn.python_function(data, function=add_one)), labels

    def epoch():
        data, _ = pipeline.run()
        found = [np.array(data[slot]).tobytes() for slot in range(30)]
        for slot in range(30):
            np.asarray(data[slot])[:] = 7
        return found

    pipeline = pipeline_of(define, batch_size=30)
    with pytest.warns(NotMapped, match="operators other than decoders use its outputs"):
        first = epoch()
    assert [epoch() for _ in range(3)] == [first] * 3
