"""Readers of any number of outputs in DALI's pipelines: names, seeds, shapes."""

import ctypes
import mmap
from functools import partial

import numpy as np
import pytest
from nvidia.dali import fn, ops, types

from dali_storage import dali, readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import RecordError
from dali_storage.contract.format import Format, Output
from dali_storage.contract.ranges import Ranges
from dali_storage.dali import gpu_memory
from dali_storage.reading.opening import Opening
from tests.kit.containers import write_numbered_tars, write_tar
from tests.kit.dali import both, pipeline_of
from tests.kit.reading_ahead import pool_of

# --- Names and seeds -----------------------------------------------------------------------------


@pytest.fixture
def tars(tmp_path):
    paths, indexes = write_numbered_tars(tmp_path, [40, 20])
    return {"paths": paths, "index_paths": indexes}


def webdataset(module, tars, outputs, **options):
    ext, dtypes = ["n"] * outputs, [types.INT64] * outputs
    made = module.webdataset(**tars, ext=ext, dtypes=dtypes, **options)
    return [made] if outputs == 1 else [*made]


def test_generated_names_and_the_metadata_are_those_of_dali(tars):
    """Also of the operators between and behind the readers, which are numbered with them."""

    def names(module):
        def define():
            nodes.extend(webdataset(module, tars, 1))
            nodes.append(fn.copy(nodes[0]))
            nodes.extend(webdataset(module, tars, 2))
            shard = {"num_shards": 3, "shard_id": 1, "pad_last_batch": True}
            nodes.extend(webdataset(module, tars, 3, name="N", **shard))
            nodes.append(fn.copy(nodes[-1]))
            nodes.extend(webdataset(module, tars, 3))
            nodes.extend(module.file(files=tars["paths"], name="F"))
            nodes.extend(module.file(files=tars["paths"]))
            nodes.extend(fn.readers.file(files=tars["paths"]))
            nodes.extend(webdataset(module, tars, 1, name="single"))
            nodes.append(fn.random.uniform())
            return nodes

        nodes = []
        pipeline = pipeline_of(define, 2)
        metas = pipeline.reader_meta(), pipeline.reader_meta("N")
        sizes = pipeline.epoch_size(), pipeline.epoch_size("N")
        return metas, sizes, [node.name for node in nodes]

    (metas, _), _, nodes = both(names)
    assert metas.keys() >= {"F", "N"}
    assert "__Webdataset_0" in nodes


# --- Shapes --------------------------------------------------------------------------------------


class Numbers(Format):
    """Of a sample of 4 bytes, the number i of the sample: outputs of several kinds."""

    operator, schema = "numbers", "Numbers"
    numbers = Output(np.dtype(np.float32), 0), Output(np.dtype(np.int16), 2)
    outputs = (*numbers, Output(np.dtype(np.bool_), 1), Output(None, None), Output())

    def decode(self, catalog, delivered, views):
        contents = views.contents()
        values = [int(np.frombuffer(content, np.int32)[0]) for content in contents]
        if 13 in values and FAILS:
            raise RecordError(catalog.path(13), "sample 13: bad luck; take another one")
        return (
            np.array(values, np.float32),
            np.array([[[value, 0, 1], [1, 2, value]] for value in values], np.int16),
            [np.arange(value) % 2 == 0 for value in values],
            [np.full((2, value + 1), value, np.float16) for value in values],
            contents,
        )


FAILS: list[bool] = []
IN_A_MODULE_OF_DECODERS = {"__module__": "project.decoders"}


def add_one(array):
    array += 1
    return array


@pytest.mark.parametrize(
    "use",
    [
        lambda data: data,
        lambda data: fn.reinterpret(data, dtype=types.UINT8),
        lambda data: fn.python_function(data, function=add_one),
        lambda data: type("Image", (ops.PythonFunction,), IN_A_MODULE_OF_DECODERS)(add_one)(data),
    ],
    ids=["output", "passed on", "function", "class"],
)
@pytest.mark.parametrize("sizes", [(5000, 6000), (5000,)], ids=["samples", "array"])
@pytest.mark.parametrize("exec_dynamic", [False, True])
def test_nobody_can_write_to_files_that_are_held_in_memory(tree, use, sizes, exec_dynamic):
    root = str(tree(4, sizes=sizes))

    def define():
        data, labels = readers.file(file_root=root, backend="memory")
        return use(data), labels

    pipeline = pipeline_of(define, exec_dynamic=exec_dynamic)
    epochs = []
    for _ in range(4):
        data, _ = pipeline.run()
        epochs.append([np.array(data[slot]).tobytes() for slot in range(4)])
        for slot in range(4):
            ctypes.memset(data[slot].data_ptr(), 7, 5000)
    assert epochs == epochs[:1] * 4


@pytest.mark.parametrize("number", [0, 1], ids=["decoded, too", "beside a decoded one"])
def test_a_function_changes_no_image_that_is_held_in_memory(jpegs, tmp_path, number):
    image = next(jpegs.rglob("*.jpg")).read_bytes()
    members = [("0.jpg", image), ("0.txt", bytes(5000)), ("1.jpg", image), ("1.txt", bytes(6000))]
    arguments = {"paths": str(write_tar(tmp_path / "x.tar", members)), "ext": ["jpg", "txt"]}

    def define():
        outputs = readers.webdataset(**arguments, backend="memory")
        changed = fn.python_function(outputs[number], function=add_one)
        return fn.decoders.image(outputs[0]), changed

    pipeline = pipeline_of(define, 2)
    epochs = [[np.array(each[1]).tolist() for each in pipeline.run()] for _ in range(3)]
    assert epochs == epochs[:1] * 3


def test_images_held_in_memory_are_decoded_without_a_copy(jpegs, monkeypatch):
    def decoded(file, **arguments):
        def define():
            data, labels = file(file_root=str(jpegs), **arguments)
            return fn.decoders.image(data), fn.peek_image_shape(data), labels

        outputs = pipeline_of(define).run()
        return [np.array(each[slot]).tolist() for each in outputs for slot in range(4)]

    expected = decoded(fn.readers.file)
    monkeypatch.setattr(MemoryReader, "read", None)
    assert decoded(readers.file, backend="memory") == expected


@pytest.fixture
def pipeline(tmp_path):
    path = tmp_path / "numbers"
    np.arange(20, dtype=np.int32).tofile(path)
    named = Catalog.from_names([str(path).encode()], [])
    ranges = Ranges.of_files([(np.arange(20) * 4, np.full(20, 4))])
    labels = np.arange(20, dtype=np.int32) + 100
    catalog = Catalog(b"", named.names, named.offsets, labels, ranges)

    opening = Opening(
        find=lambda tree, remote: catalog, reader=MemoryReader, depth=2, fmt=Numbers()
    )
    add = partial(dali.add_reader, "R", opening, with_index=True)
    return pipeline_of(add, 5, prefetch_queue_depth=1)


def require_numbers(outputs, values):
    scalars, matrices, flags, halves, data, labels, index = outputs
    assert scalars.as_array().tolist() == list(values)
    assert [output.dtype for output in outputs] == [
        *(types.FLOAT, types.INT16, types.BOOL, types.FLOAT16, types.UINT8),
        *(types.INT32, types.INT64),
    ]
    for i, value in enumerate(values):
        assert np.array(scalars[i]).shape == ()
        assert np.array_equal(matrices.at(i), [[value, 0, 1], [1, 2, value]])
        assert np.array_equal(flags.at(i), np.arange(value) % 2 == 0)
        assert np.array_equal(halves.at(i), np.full((2, value + 1), value))
        assert data.at(i).tobytes() == np.int32(value).tobytes()
    assert labels.as_array().ravel().tolist() == [value + 100 for value in values]
    assert index.as_array().ravel().tolist() == list(values)


def test_outputs_have_any_shape_and_dtype(pipeline):
    for batch in range(6):
        first = batch * 5 % 20
        require_numbers(pipeline.run(), range(first, first + 5))


def test_a_wrong_record_is_an_error_and_no_batch_is_lost(pipeline, monkeypatch):
    monkeypatch.setattr(f"{__name__}.FAILS", [True])
    for batch in range(2):
        require_numbers(pipeline.run(), range(batch * 5, batch * 5 + 5))
    for _ in range(2):
        with pytest.raises(RecordError, match="numbers': sample 13: bad luck") as caught:
            pipeline.run()
        assert caught.value.filename.endswith("numbers")
    monkeypatch.setattr(f"{__name__}.FAILS", [])
    require_numbers(pipeline.run(), range(10, 15))


# --- Memory --------------------------------------------------------------------------------------


def test_only_memory_of_the_lease_counts_as_page_locked():
    lease = pool_of(lambda nbytes: np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)).lease(9)
    own = np.zeros(100, np.uint8)
    of_the_lease = [
        *(lease, lease[3:9], lease[3:9][1:], lease.data[3:9], lease[:80].reshape(4, 20)[1]),
        np.frombuffer(lease.data[8:16], np.int64),
        np.frombuffer(lease[8:16], np.int64).reshape(1, 1).T,
        np.frombuffer(lease.data[8:16], np.int64).data,
    ]
    not_of_it = [
        *(own, own.data, own[3:].data[2:], memoryview(b"bytes"), b"bytes", np.empty(0)),
        np.asarray(lease)[4:],  # it refers to the arena, and does not keep the lease alive
        *(lease.copy(), lease[[1, 2, 3]], lease[[1, 2, 3]][1:], lease[[1, 2, 3]].data),
        lease[lease > 300],
        np.frombuffer(lease[:8].tobytes(), np.int64),
        np.frombuffer(lease.copy(), np.int32)[1:].data,
        np.array(lease[:3], subok=True).reshape(1, 3),
    ]
    assert [gpu_memory._is_leased(each) for each in of_the_lease] == [True] * len(of_the_lease)
    assert [gpu_memory._is_leased(each) for each in not_of_it] == [False] * len(not_of_it)
