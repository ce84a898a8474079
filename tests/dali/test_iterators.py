"""Failed reads under the iterators of nvidia.dali.plugin.pytorch; kit/parity.py compares others."""

import itertools
import shutil
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.reading.prefetch import Prefetcher
from tests.kit.dali import pipeline_of
from tests.kit.process import lanes, without_collector

pytorch = pytest.importorskip("nvidia.dali.plugin.pytorch")
pytestmark = pytest.mark.usefixtures("pipelines_end")


def combined(every, **axes):
    """Parametrizes by all combinations; the first tier has one in `every`, evenly spread."""
    chosen = []
    for indices in itertools.product(*(range(len(values)) for values in axes.values())):
        values = [axis[index] for axis, index in zip(axes.values(), indices, strict=True)]
        marks = [pytest.mark.long] if sum(indices) % every else []
        chosen.append(pytest.param(*values, marks=marks, id="-".join(map(str, values))))
    return pytest.mark.parametrize(list(axes), chosen)


def pipelines(file, root, shards=1, pipeline=None):
    """One pipeline per shard; samples differ in their bytes and labels."""

    def define(shard):
        data, labels = file(file_root=str(root), name="R", num_shards=shards, shard_id=shard)
        return fn.pad(data, fill_value=0), labels

    return [pipeline_of(partial(define, shard), **(pipeline or {})) for shard in range(shards)]


def iterate(made, **options):
    return pytorch.DALIGenericIterator(made, ["data", "label"], reader_name="R", **options)


def data_of(outputs):
    return [output["data"].tolist() for output in outputs]


@pytest.fixture
def files(tree):
    """40 files in one class, ten batches."""
    return tree(40, classes=1, sizes=(3, 5, 9))


@contextmanager
def missing(files, batch):
    """A file of `batch` is not there for a while."""
    file = files / "class0" / f"{4 * batch + 2:04d}.jpg"
    file.rename(files / "away")
    yield str(file)
    (files / "away").rename(file)


def until_it_fails(iterator, seen):
    """Append the batches before the one that cannot be read."""
    with pytest.raises(FileNotFoundError):
        for out in iterator:
            seen.append(data_of(out))


def real_batches(files, shards=1):
    return list(map(data_of, iterate(pipelines(fn.readers.file, files, shards))))


@combined(
    4,
    kind=[pytorch.DALIGenericIterator, pytorch.DALIClassificationIterator],
    depth=[1, 2, 3],
    exec_dynamic=[False, True],
    bad=[0, 1, 3, 9],
)
def test_a_failed_read_costs_no_batch(files, kind, depth, exec_dynamic, bad):
    """The batches before it are delivered, then its error is raised until it can be read."""
    options = {"prefetch_queue_depth": depth, "exec_dynamic": exec_dynamic}
    made = pipelines(readers.file, files, pipeline=options)
    outputs = [] if kind is pytorch.DALIClassificationIterator else [["data", "label"]]
    iterator = None
    seen = []
    with missing(files, bad) as name:
        with pytest.raises(FileNotFoundError) as caught:
            iterator = kind(made, *outputs, reader_name="R")  # takes the first batch at once
            for out in iterator:
                seen.append(data_of(out))
        assert caught.value.filename == name
        assert seen == real_batches(files)[:bad]
        for _ in range(2 if iterator else 0):
            with pytest.raises(FileNotFoundError):
                next(iterator)
    iterator = iterator or kind(made, *outputs, reader_name="R")
    assert seen + [data_of(out) for out in iterator] == real_batches(files)
    assert made[0]._batches_to_consume == depth  # it reads ahead as before


@pytest.mark.parametrize(("shards", "bad"), [(1, 5), (2, 8)])  # batch 3 of the second shard
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_failed_read_costs_no_batch_of_any_pipeline_nor_of_their_checkpoints(
    files, depth, shards, bad
):
    def make(checkpoints):
        options = {"prefetch_queue_depth": depth, "enable_checkpointing": True}
        return [
            pipelines(readers.file, files, shards, pipeline=options | {"checkpoint": it})[shard]
            for shard, it in enumerate(checkpoints)
        ]

    seen = []
    made = make([None] * shards)
    with missing(files, bad):
        iterator = iterate(made)
        until_it_fails(iterator, seen)
    expected = real_batches(files, shards)
    assert seen == expected[: bad - 5 * (shards - 1)]
    for each in (iterate(make(iterator.checkpoints())), iterator):
        assert seen + [data_of(out) for out in each] == expected


@combined(3, depth=[1, 2, 4], exec_dynamic=[False, True], bad=[0, 1, 2], auto_reset=[False, True])
def test_an_epoch_ends_although_a_read_of_the_next_has_failed(
    tree, depth, exec_dynamic, bad, auto_reset, monkeypatch
):
    # Or the next epoch would have been read while its files were there.
    monkeypatch.setitem(Prefetcher.__init__.__kwdefaults__, "most", 1)
    files = tree(60, classes=1, sizes=(3, 5, 9))
    options = {"prefetch_queue_depth": depth, "exec_dynamic": exec_dynamic}
    iterator = iterate(pipelines(readers.file, files, pipeline=options), auto_reset=auto_reset)
    expected = real_batches(files)
    seen = [data_of(next(iterator)) for _ in range(4)]
    with missing(files, bad):
        seen += [data_of(out) for out in iterator]
        assert seen == expected
        if not auto_reset:
            iterator.reset()
        seen = []
        until_it_fails(iterator, seen)
        assert seen == expected[:bad]
    assert seen + [data_of(out) for out in iterator] == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_pipeline_that_is_reset_after_a_failed_read_goes_on(files, depth):
    made = pipelines(readers.file, files, pipeline={"prefetch_queue_depth": depth})
    seen = []
    with missing(files, 5):
        iterator = iterate(made)
        for _ in range(2):
            until_it_fails(iterator, seen)
            made[0].reset()
    assert seen + [data_of(out) for out in iterator] == real_batches(files)
    assert made[0]._batches_to_consume == depth


def by_run(pipeline):
    data, _ = pipeline.run()
    return data.as_array().tolist()


def by_scheduling(pipeline):
    pipeline.schedule_run()
    data, _ = pipeline.share_outputs()
    batch = data.as_array().tolist()
    pipeline.release_outputs()
    return batch


@pytest.mark.parametrize("take", [by_run, by_scheduling])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_runs_go_on_after_a_failed_read(files, depth, take):
    (pipeline,) = pipelines(readers.file, files, pipeline={"prefetch_queue_depth": depth})
    expected, seen = real_batches(files), []
    with missing(files, 8) as name, pytest.raises(FileNotFoundError) as caught:
        while True:
            seen.append(take(pipeline))
    assert caught.value.filename == name
    # Not before DALI schedules batch 8, which run() number 8 - (depth - 1) does.
    assert len(seen) == 8 - (depth - 1)
    assert [[batch] for batch in seen + [take(pipeline) for _ in range(10 - len(seen))]] == expected


def test_two_readers_stay_together_when_one_of_them_fails(files):
    shutil.copytree(files, masks := files.with_name("masks"))
    pipeline = pipeline_of(lambda: [readers.file(file_root=str(it))[0] for it in (files, masks)])

    def assert_pair():
        one, other = ([np.asarray(it).tobytes() for it in output] for output in pipeline.run())
        assert one == other

    for spoilt, batch in ((files, 7), (masks, 7), (files, 2)):
        with missing(spoilt, batch), pytest.raises(FileNotFoundError):
            while True:
                assert_pair()
        for _ in range(5):
            assert_pair()


@pytest.mark.parametrize("iterated", [False, True])
def test_a_failed_read_beside_another_source_ends_the_pipeline(files, iterated):
    """DALI has dropped the other source's batch, so later ones would be paired wrongly."""

    def define():
        data, _ = readers.file(file_root=str(files), name="R")
        return fn.pad(data), fn.external_source(lambda number: [np.array([number])] * 4, batch=True)

    pipeline = pipeline_of(define)
    with missing(files, 5), pytest.raises(FileNotFoundError):
        run = pipeline.run
        if iterated:
            run = iterate([pipeline]).__next__
        for _ in range(10):
            run()
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"'R'.*another source.*checkpoint") as caught:
            run()
        assert str(caught.value).count("a read failed (FileNotFoundError") == 1
        assert "RuntimeError" not in str(caught.value)


@pytest.mark.parametrize("delivered", [3, 5])
def test_a_pipeline_dropped_after_a_failed_read_is_closed_at_once(files, delivered):
    """Before its error is raised and after."""
    made = pipelines(readers.file, files, pipeline={"prefetch_queue_depth": 3})
    with without_collector():
        before = lanes()
        with missing(files, 5):
            iterator = iterate(made)
            for _ in range(delivered):
                next(iterator)
            if delivered == 5:
                with pytest.raises(FileNotFoundError):
                    next(iterator)
        del iterator, made
        assert lanes() <= before
