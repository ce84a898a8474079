"""readers.records. What is expected is cut out of what was written."""

import io
import os
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn, pipeline_def
from PIL import Image

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import ranges
from dali_storage.contract.ranges import Ranges
from dali_storage.formats import plain
from dali_storage.loaders import Loader
from tests.kit.containers import write_tar
from tests.kit.dali import take
from tests.kit.parity import BACKENDS, build
from tests.kit.stand_ins import Unpickled


class Data:
    """Three files of random bytes, and ranges in them: `files`, `ids`, `offsets`, `sizes`."""

    def __init__(self, directory: Path, count: int = 23, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self.bytes = [random.bytes(length) for length in (9_000, 70_001, 30_000)]
        self.files = [directory / f"{number}.bin" for number in range(3)]
        for path, content in zip(self.files, self.bytes, strict=True):
            path.write_bytes(content)
        self.ids = random.integers(0, 3, count)
        self.sizes = random.integers(0, 5_000, count)
        self.sizes[:2] = 0, 4_000
        self.offsets = np.array([random.integers(0, 9_000 - size + 1) for size in self.sizes])
        self.contents = [
            self.bytes[file][start : start + size]
            for file, start, size in zip(self.ids, self.offsets, self.sizes, strict=True)
        ]

    def arguments(self, **changes):
        columns = {"offsets": self.offsets, "sizes": self.sizes, "file_ids": self.ids}
        return {"files": self.files, **columns, **changes}


@pytest.fixture
def data(tmp_path):
    return Data(tmp_path)


def pipeline_of(batch_size=4, **arguments):
    arguments = {"name": "R"} | arguments
    return build(readers.records, batch_size, {"prefetch_queue_depth": 1}, **arguments)


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_samples_are_the_bytes_of_the_files(data, backend, options):
    pipeline = pipeline_of(**data.arguments(), backend=backend, backend_options=options)
    expected = [(content, number) for number, content in enumerate(data.contents)] * 4
    assert take(pipeline, 20) == expected[:80]


def test_columns_may_be_lists_arrays_of_any_width_or_files(data, tmp_path):
    expected = take(pipeline_of(**data.arguments()), 6)
    arrays = {"offsets": data.offsets, "sizes": data.sizes, "file_ids": data.ids}
    for kind in ("uint16", "int32", ">i8", "uint64"):
        columns = {name: values.astype(kind) for name, values in arrays.items()}
        assert take(pipeline_of(**data.arguments(**columns)), 6) == expected
        paths = {}
        for name, values in columns.items():
            paths[name] = tmp_path / f"{name}.npy"
            np.save(paths[name], values)
        assert take(pipeline_of(**data.arguments(**paths)), 6) == expected
        assert take(pipeline_of(**data.arguments(offsets=str(paths["offsets"]))), 6) == expected
    lists = {name: values.tolist() for name, values in arrays.items()}
    assert take(pipeline_of(**data.arguments(**lists)), 6) == expected


def test_one_size_and_one_file_need_no_columns(data):
    offsets = [0, 900, 100, 8_000]
    pipeline = pipeline_of(files=data.files[0], offsets=offsets, sizes=1_000)
    expected = [data.bytes[0][start : start + 1_000] for start in offsets]
    assert take(pipeline, 1) == list(zip(expected, range(4), strict=True))
    pipeline = pipeline_of(files=[data.files[0]], offsets=offsets, sizes=np.int32(0))
    assert take(pipeline, 1) == [(b"", number) for number in range(4)]


@pytest.mark.parametrize("kind", ["list", "int64", "file", "text"])
def test_labels_are_those_of_readers_file(data, tmp_path, kind):
    labels = [2**31 + 5, -3, 2**40 + 7, 0]
    real = build(fn.readers.file, 4, {}, files=[str(data.files[0])] * 4, labels=labels)
    expected = real.run()[1].as_array().ravel().tolist()
    np.save(path := tmp_path / "labels.npy", labels)
    kinds = {"list": labels, "int64": np.array(labels), "file": path, "text": [*map(str, labels)]}
    pipeline = pipeline_of(files=data.files[0], offsets=range(4), sizes=1, labels=kinds[kind])
    assert [label for _, label in take(pipeline, 1)] == expected


def test_a_decode_error_names_all_components_of_a_sample(tmp_path):
    none = [("0.jpg", b"none"), ("0.cls", b"none")]
    tars = [write_tar(tmp_path / f"{number}.tar", none) for number in range(2)]

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id, num_shards):
        shard = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
        data, label = readers.webdataset(paths=tars, ext=["jpg", "cls"], name="Reader", **shard)
        return fn.decoders.image(data), label

    image = io.BytesIO()
    Image.new("RGB", (8, 8)).save(image, "JPEG")
    write_tar(tars[0], [("0.jpg", image.getvalue()), ("0.cls", b"none")])
    with Loader(make, to="numpy") as one, pytest.raises(RuntimeError) as caught:
        list(one)
    (note,) = caught.value.__notes__
    assert note.endswith("1.tar (sample 1: 4 bytes at 512), 1.tar (sample 1: 4 bytes at 1,536)")
    assert "sample 0" not in note


OBJECTS = np.empty(23, object)
OBJECTS[:] = [Unpickled() for _ in range(23)]
WRONG = {"empty": b"", "text": b"text", "pickle": pickle.dumps([1]), "objects": b""}
WRONG["cut"] = b"\x93NUMPY\x01\x00\x10\x00{'descr': '<i8'"


@pytest.mark.parametrize("argument", ["offsets", "sizes", "file_ids", "labels"])
@pytest.mark.parametrize("kind", WRONG)
def test_a_column_that_is_no_npy_of_integers_is_refused_and_not_unpickled(
    data, tmp_path, argument, kind
):
    np.save(path := tmp_path / "column.npy", OBJECTS)
    message = "a .npy file of integers"
    if kind == "objects":
        message = ".* Object arrays"
    else:
        path.write_bytes(WRONG[kind])
    with pytest.raises(ValueError, match=rf"{argument} '.*column.npy' must be {message}"):
        pipeline_of(**data.arguments(**{argument: path}))


def test_a_missing_column_is_named(data, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        pipeline_of(**data.arguments(sizes=tmp_path / "no.npy"))
    assert caught.value.filename == str(tmp_path / "no.npy")


@pytest.mark.parametrize(
    ("offset", "size"), [(8_999, 2), (9_001, 0), (0, 9_001), (2**63 - 1, 2**63 - 1), (2**62, 1)]
)
def test_a_range_beyond_its_file_is_refused_with_sample_and_file(data, offset, size, monkeypatch):
    monkeypatch.setattr(ranges, "_PART", 5)
    data.offsets[17], data.sizes[17], data.ids[17] = offset, size, 0
    data.offsets[20], data.ids[20] = 2**50, 0
    message = rf"sample 17: {size:,} bytes at {offset:,}, but '.*0.bin' has 9,000 bytes"
    with pytest.raises(ValueError, match=message):
        pipeline_of(**data.arguments())


def test_a_range_may_end_with_its_file(data):
    pipeline = pipeline_of(2, files=data.files[0], offsets=[8_000, 9_000], sizes=[1_000, 0])
    assert take(pipeline, 1) == [(data.bytes[0][8_000:], 0), (b"", 1)]


@pytest.mark.parametrize("backend", ["python-file", "memory"])
def test_a_batch_may_have_no_bytes(data, backend):
    pipeline = pipeline_of(2, files=data.files[0], offsets=[7, 0, 7], sizes=0, backend=backend)
    assert take(pipeline, 3) == [(b"", label) for label in (0, 1, 2, 0, 1, 2)]


def test_a_backend_of_whole_files_is_refused_by_name(data, monkeypatch):
    monkeypatch.setattr(MemoryReader, "reads_ranges", False)
    monkeypatch.setattr(MemoryReader, "__init__", lambda self, catalog: pytest.fail("opened"))
    with pytest.raises(ValueError, match=r"backend 'memory' reads whole files only"):
        pipeline_of(**data.arguments(), backend="memory")


@pytest.mark.parametrize(("is_sorted", "limit"), [(True, 12.1), (False, 13.1)])
def test_an_index_takes_few_bytes_a_sample(is_sorted, limit):
    count = 200_000
    files = np.arange(count) * 100 // count
    if not is_sorted:
        files = np.random.default_rng(3).permutation(files)
    starts, sizes = np.arange(count), np.arange(count) % 1000
    ranges = Ranges.of_columns(files, starts, sizes)
    arrays = ranges.runs, ranges.files, ranges.starts, ranges.sizes
    assert sum(array.nbytes for array in arrays) / count < limit
    assert all(array.base is None for array in arrays)  # nothing larger is kept


def test_one_size_for_all_takes_no_memory(tmp_path):
    path = tmp_path / "file"
    os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 10**9)
    np.save(tmp_path / "offsets.npy", np.arange(200_000) * 4_000)
    tracemalloc.start()
    catalog = plain.find([os.fsencode(path)], tmp_path / "offsets.npy", 4_000, None, None)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held < 200_000 * 12.5  # offsets and labels
    assert len(catalog) == 200_000


def test_an_array_of_the_user_is_copied(data):
    pipeline = pipeline_of(**data.arguments())
    data.offsets[:] = data.sizes[:] = data.ids[:] = 0
    expected = [(content, number) for number, content in enumerate(data.contents[:20])]
    assert take(pipeline, 5) == expected


@given(
    files=st.lists(st.integers(0, 300), min_size=1, max_size=200) | st.just([0] * 50 + [1] * 50),
    picked=st.lists(st.integers(0, 10**6), max_size=50),
)
def test_the_file_of_a_sample_is_found(files, picked):
    column = np.array(files)
    ranges = Ranges.of_columns(column, np.zeros_like(column), np.ones_like(column))
    samples = np.array(picked, np.int64) % len(files)
    assert ranges.files_of(samples).tolist() == column[samples].tolist()
    assert ranges.files_of(samples).dtype == np.int64
