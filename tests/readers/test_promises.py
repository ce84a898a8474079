"""What we promise of all readers. What DALI promises, too, is in tests/kit/parity.py."""

import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.data_node import DataNode

import dali_storage
from dali_storage import readers
from dali_storage.contract.errors import ContainerChangedError, SampleReplaced
from tests.kit import versions
from tests.kit.dali import both, pipeline_of
from tests.kit.parity import (
    OUTPUT,
    POLICIES,
    build,
    compare,
    epochs,
    numbered,
    seeds,
    some_order,
    take,
    written,
)
from tests.kit.tiers import by_tier

OTHERS = {"catalog", "last_batch", "progress", "receipt", "replaced", "set_weights", "state"}
OTHERS |= {"ReaderBatch", "ReaderBatches", "batches"}
READERS = sorted({*readers.__all__} - OTHERS)
COUNTS = [3, 2, 2]
SIZE = sum(COUNTS)
CONTAINERS = {"webdataset": "{}.tar", "tfrecord": "{}.tfrecord", "mxnet": "{}.rec"}
CONTAINERS |= {"parquet": "{}.parquet", "mds": "shard.{:05}.mds", "litdata": "chunk-0-{}.bin"}
CONTAINERS |= {name: "{}." + name + "/data.mdb" for name in ("caffe", "caffe2", "lmdb")}
FILES = {"coco": "{}.bin", "npz": "{:03}.npz", "numpy": "{:03}.npy", "sequence": "stream/{:03}.png"}
"""The names of containers by their numbers, and of files by those of their samples."""


@pytest.fixture(params=READERS)
def reader(request):
    if request.param == "mxnet":
        versions.require("2.2", "it cannot read several RecordIO files")
    return request.param


@pytest.fixture
def given(reader, tmp_path):
    """Arguments of a reader of numbered samples in three containers or files, or in a file each."""
    return written(reader, tmp_path / "data", COUNTS) | {"name": "R"}


@pytest.fixture
def paths(reader, tmp_path):
    """The file of each sample."""
    containers = np.repeat(range(len(COUNTS)), COUNTS)
    pattern = FILES.get(reader) or CONTAINERS.get(reader, "{}.bin")
    numbers = range(SIZE) if reader in FILES else containers.tolist()
    return [str(tmp_path / "data" / pattern.format(it)) for it in numbers]


def flat(found):
    """All outputs of a reader."""
    first, *rest = found if isinstance(found, tuple) else (found,)
    return [*(first.values() if isinstance(first, dict) else [first]), *rest]


def outputs(reader, **arguments):
    """All nodes of a reader, the number first."""
    nodes = flat(getattr(readers, reader)(**arguments))
    number = OUTPUT.get(reader, 0)
    nodes.insert(0, nodes.pop(number if isinstance(number, int) else 0))
    return nodes


def made(reader, given, **more):
    return build(lambda **it: outputs(reader, **it), SIZE, {}, **given | more)


def numbers(output):
    return [int(np.asarray(it).ravel()[0]) for it in output]


def test_the_index_of_a_sample_leads_to_its_number_and_its_file(reader, given, paths):
    order = {} if reader == "mix" else {"random_shuffle": True, "seed": 1}
    pipeline = made(reader, given, return_index=True, **order)
    first, *_, index = pipeline.run()
    catalog, found = readers.catalog(pipeline, "R"), numbers(index)
    assert numbers(first) == found != sorted(found)
    assert sorted(found) == [*range(SIZE)]
    at = [os.fsdecode(catalog.path(it * catalog.pieces)) for it in found]
    assert [*map(os.path.normpath, at)] == [paths[it] for it in found]


def test_batches_without_a_pipeline_are_those_of_one(reader, given):
    given |= {"return_index": True, "pad_last_batch": True}
    operator = getattr(readers, reader)
    if reader in ("nemo_asr", "sequence"):
        with pytest.raises(ValueError, match="decodes by operators of DALI, in a pipeline only"):
            readers.batches(operator, batch_size=4, **given)
        return
    wanted = take(build(lambda **it: flat(operator(**it)), 4, {}, **given), 2)
    with readers.batches(operator, batch_size=4, **given) as batches:
        for batch, outputs, size in zip(batches, wanted, [4, SIZE - 4], strict=True):
            for found, output in zip(flat(batch.outputs), outputs, strict=True):
                arrays = [(str(it.dtype), it.shape, it.tobytes()) for it in found]
                assert arrays == output[:size]


def test_a_missing_file_is_named(reader, given, paths):
    if listed := reader in ("npz", "numpy", "sequence"):
        pipeline = made(reader, given)
        pipeline.reader_meta("R")
    Path(paths[-1]).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        (pipeline if listed else made(reader, given)).run()
    assert os.path.normpath(caught.value.filename) == paths[-1]


def test_a_state_of_other_data_is_refused(reader, given, tmp_path):
    state = readers.state(made(reader, given, pad_last_batch=True), "R")
    made(reader, given, pad_last_batch=True, resume=state).run()
    other = written(reader, tmp_path / "other", [*COUNTS[:-1], COUNTS[-1] + 1]) | {"name": "R"}
    with pytest.raises(ValueError, match="resume with the same"):
        made(reader, other, pad_last_batch=True, resume=state).run()


def test_a_bad_sample_is_replaced_by_a_good_one_and_told(reader, given, paths):
    pipeline = made(reader, given, on_error="replace", return_index=True)
    pipeline.reader_meta("R")
    Path(paths[-1]).unlink()
    bad = {number for number, path in enumerate(paths) if path == paths[-1]}
    with pytest.warns(SampleReplaced, match="No such file"):
        first, *_, index = pipeline.run()
    assert numbers(first) == numbers(index)
    assert {*numbers(index)} == {*range(SIZE)} - bad
    told = readers.replaced(pipeline, "R")
    assert {(it, os.path.normpath(path)) for it, path, _ in told} == {(it, paths[it]) for it in bad}


SEARCHED = ["caffe", "caffe2", "litdata", "lmdb", "mds", "npz", "parquet", "tfrecord", "webdataset"]
"""Readers that find the places of samples in the containers. Others are told them, or need none."""


@pytest.mark.parametrize("reader", SEARCHED, indirect=True)
def test_a_container_that_is_replaced_after_it_was_opened_is_refused(reader, given, paths):
    pipeline = made(reader, given, **({"index_path": None} if reader == "tfrecord" else {}))
    pipeline.reader_meta("R")
    os.replace(shutil.copy(paths[-1], f"{paths[-1]}.twin"), paths[-1])
    with pytest.raises(ContainerChangedError, match="was written or replaced") as caught:
        pipeline.run()
    assert os.path.normpath(caught.value.filename) == paths[-1]


SINGLE = {"caffe": {"label_available": False}, "caffe2": {"label_type": 4}}
SINGLE |= {"manifest": {"columns": {}}, "nemo_asr": {"read_idxs": False}}
SINGLE |= {"litdata": {}, "mds": {}, "npz": {}, "numpy": {}, "sequence": {}, "webdataset": {}}
"""Arguments for a single output. The other readers always have labels, names or a tuple."""


@pytest.mark.parametrize("reader", SINGLE, indirect=True)
def test_a_single_output_is_no_tuple(reader, given):
    given, operator = {**given, **SINGLE[reader]}, getattr(readers, reader)
    with Pipeline(1, 1, None):
        assert isinstance(operator(**given), DataNode)
        assert len(operator(**given, return_index=True)) == 2


def test_what_was_delivered_is_counted(reader, given, paths):
    pipeline = made(reader, given)
    ranges = readers.catalog(pipeline, "R").ranges
    size = sum(map(os.path.getsize, paths)) if ranges is None else ranges.sizes.sum()
    for batches in (1, 2):
        pipeline.run()
        counted = dali_storage.statistics(pipeline, "R")
        assert counted.batches >= batches
        assert counted.bytes == counted.batches * size


@pytest.mark.parametrize("reader", [it for it in READERS if hasattr(fn.readers, it)], indirect=True)
@pytest.mark.usefixtures("no_deprecations")
def test_readers_without_names_have_those_that_dali_gives_them(reader, tmp_path):
    made = numbered(reader, tmp_path / "data", [3])

    def metas(module):
        read = made(module)
        return pipeline_of(lambda: [read(), read(name="N")]).reader_meta()

    assert len({*both(metas)} - {"N"}) == 1


ALIKE = {"columns": "file", "manifest": "file", "npz": "file", "parquet": "file"}
ALIKE |= {"records": "file", "lmdb": "caffe", "mds": "caffe", "litdata": "caffe"}
"""Readers that DALI lacks, and those of DALI that have their order."""


@pytest.mark.parametrize(
    ("reader", "theirs"),
    [pytest.param(*it, marks=[versions.CAFFE] * ("caffe" in it)) for it in ALIKE.items()],
)
def test_a_reader_that_dali_lacks_has_the_order_of_one_that_it_has(reader, theirs, tmp_path):
    def of_numbers(name, module, **more):
        read = numbered(name, tmp_path / name, [3, 5, 6, 2])(module)
        return lambda **given: fn.cast(read(**given | more), dtype=types.INT64)

    real, ours = of_numbers(theirs, fn.readers, dont_use_mmap=True), of_numbers(reader, readers)
    found = Counter[str]()
    for seed in seeds(by_tier(6, 60)):
        random, of_containers = Random(seed), theirs == "caffe"
        order = some_order(random, 16, by_container=of_containers, by_epoch=not of_containers)
        del order["dont_use_mmap"]
        found[compare(random, real, ours, order)] += 1
    assert found["equal"] + found["restored"] > 2
    order = {"random_shuffle": True, "seed": 3, "pad_last_batch": True, "cut": 3}
    for policy in POLICIES:
        assert epochs(ours, policy, **order) == epochs(real, policy, **order)
