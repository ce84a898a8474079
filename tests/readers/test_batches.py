"""`readers.batches`. The oracle is DALI's own reader, in pipelines of one sample a batch."""

import copy
import math
import os
import pickle
from itertools import chain, islice
from pathlib import Path
from random import Random

import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import SampleReplaced
from tests.kit.dali import build, take
from tests.kit.process import lanes, without_collector
from tests.kit.receipts import sums
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("pipelines_end")
SIZE = 23
ORDERS = [
    {},
    {"stick_to_shard": True},
    {"random_shuffle": True, "seed": 7, "initial_fill": 5},
    {"shuffle_after_epoch": True},
]


@pytest.fixture
def files(tmp_path):
    for number in range(SIZE):
        (tmp_path / f"{number:02}.jpg").write_bytes(bytes([number]) * (1 + number % 5))
    return sorted(map(str, tmp_path.iterdir()))


@pytest.fixture
def opened():
    """Opens batches, and closes them."""
    made = []

    def opened(files, batch_size=4, **given):
        given = {"labels": [*range(len(files))]} | given
        made.append(readers.batches(readers.file, files=files, batch_size=batch_size, **given))
        return made[-1]

    yield opened
    for each in made:
        each.close()


def samples(batches):
    """The bytes and labels of some batches, as of `take()`."""
    each = [zip(map(bytes, it.data), it.labels.tolist(), strict=True) for it in batches]
    return [*chain(*each)]


@pytest.mark.parametrize("seed", range(by_tier(10, 200)))
def test_epochs_are_those_of_dali(seed, files, opened):
    draw = Random(seed)
    world, size, order = draw.randint(1, 4), draw.randint(1, 7), draw.choice(ORDERS)
    shard = order | {"num_shards": world, "shard_id": draw.randrange(world)}
    size = min(size, SIZE // world)  # a full batch on every rank
    saves, last_batch = draw.random() < 0.5, draw.choice(["partial", "partial", "drop", "pad"])
    names = {"files": files, "labels": [*range(SIZE)], "pad_last_batch": True}
    options = {"enable_checkpointing": saves}
    dali = build(fn.readers.file, 1, **names, **shard, pipeline=options)
    ours = opened(files, size, last_batch=last_batch, enable_checkpointing=saves, **shard)
    sticks = "stick_to_shard" in order or "shuffle_after_epoch" in order
    for epoch in range(3):
        rank = shard["shard_id"] if sticks else (shard["shard_id"] + epoch) % world
        share = SIZE * (rank + 1) // world - SIZE * rank // world
        wanted = take(dali, math.ceil(SIZE / world))[:share]
        if last_batch == "drop":
            wanted = wanted[: SIZE // world // size * size]
        assert len(ours) == math.ceil(
            (math.ceil(SIZE / world) if last_batch == "pad" else len(wanted)) / size
        )
        found = [*ours]
        valid = [sample for it in found for sample in samples([it])[: it.valid]]
        assert (valid, sum(it.valid for it in found)) == (wanted, len(wanted))
        if last_batch == "pad":
            assert {*map(len, found)} == {size}
            assert {*samples(found)} == {*wanted}


@pytest.mark.parametrize("begins", ["in a pipeline", "without one"])
def test_a_state_resumes_with_and_without_a_pipeline(begins, files, opened):
    def run(pipelines, world, batches, resume=None):
        """The labels of some batches of all ranks, and the state after them."""
        found = []
        for rank in range(world):
            shard = {"num_shards": world, "shard_id": rank, "random_shuffle": True, "seed": 3}
            shard |= {} if resume is None else {"resume": resume}
            if pipelines:
                names = {"files": files, "labels": [*range(SIZE)], "name": "R"}
                made = build(readers.file, 3, pad_last_batch=True, **names, **shard)
                found += [label for _, label in take(made, batches)]
                state = readers.state(made, "R")
            else:
                ours = opened(files, 3, **shard)
                found += [label for _, label in samples(islice(ours, batches))]
                state = ours.state()
        return found, state

    first, state = run(begins == "in a pipeline", 2, 2)
    rest, _ = run(begins != "in a pipeline", 1, 4, state)
    assert [*map(len, (first, {*first}, {*rest}))] == [12, 12, 11]
    assert {*first, *rest} == {*range(SIZE)}


def test_no_batch_is_lost_by_a_break_or_an_error(files, opened):
    ours = opened(files)
    os.rename(files[9], files[9] + ".x")
    found = samples([next(iter(ours))])
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as caught:
            found.extend(sample for batch in ours for sample in samples([batch]))
        assert caught.value.filename == files[9]
    os.rename(files[9] + ".x", files[9])
    found += samples(ours)
    assert [label for _, label in found] == [*range(SIZE)]
    assert samples(ours) == found


@pytest.mark.parametrize("backend", ["python-file", "memory"])
def test_arrays_stay_as_they_are_while_they_are_held(backend, files, opened):
    ours = opened(files, 2, backend=backend)
    held = [(it, array) for it in chain(ours, ours, ours) for array in it.data]
    ours.close()
    ours.close()
    assert [bytes(array) for _, array in held] == 3 * [Path(it).read_bytes() for it in files]
    assert {array.flags.writeable for _, array in held} == {backend != "memory"}
    with pytest.raises(RuntimeError, match=r"is closed; call readers.batches\(\) again"):
        next(iter(ours))


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
def test_neither_batches_nor_an_open_backend_can_be_copied(again, files, opened):
    """A copy would close the files of the other, or read others of the same numbers."""
    with pytest.raises(TypeError, match=r"call readers.batches\(\) again"):
        again(opened(files))
    catalog = opened(files).catalog
    with (
        PythonFileReader(catalog) as reader,
        pytest.raises(TypeError, match="open another one"),
    ):
        again(reader)


def test_what_is_dropped_is_closed(files):
    before = lanes()
    with without_collector():
        ours = iter(readers.batches(readers.file, files=files, batch_size=2))
        assert len(next(ours)) == 2
        assert lanes() - before
        del ours
        assert lanes() <= before


def test_a_bad_sample_is_replaced_and_its_receipt_says_so(files, opened):
    ours = opened(files, on_error="replace", receipt="bytes")
    os.unlink(files[5])
    with pytest.warns(SampleReplaced):
        found = samples(ours)
    assert [(at, path) for at, path, _ in ours.replaced] == [(5, files[5])]
    assert len(found) == SIZE
    names = [*map(os.path.basename, files)]
    right = [(names[label], data) for data, label in found[:5] + found[6:]]
    receipt = ours.receipt()
    assert (receipt["count"], receipt["replaced"]) == (SIZE, 1)
    assert receipt["sum"] == sums(right, "bytes")["sum"]
    assert ours.state()["receipt"][-1] == receipt | {"epoch": 0}


REFUSED = {
    "reader must be a function of dali_storage.readers": {"reader": fn.readers.file},
    "reader must be .*, not None": {"reader": None},
    **{
        f"batch_size must be an integer from 1 to .*, not {size}": {"batch_size": size}
        for size in (0, -1, 2.5, True)
    },
    "last_batch must be 'partial', 'drop', 'pad', not 'fill'": {"last_batch": "fill"},
    "last_batch='drop': an epoch would have no batch": {"last_batch": "drop", "batch_size": 99},
    "device must be 'cpu', not 'gpu': .* numpy arrays in host": {"device": "gpu"},
    "pad_last_batch must be True or left out": {"pad_last_batch": False},
    "unexpected keyword argument 'shuffle'": {"shuffle": True},
    "num_shards must be at most 23": {"num_shards": 24},
    "pinned is for pipelines; leave it out": {"pinned": True},
    "files must not be empty|no files|No files": {"files": []},
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_arguments(message, files):
    given = {"reader": readers.file, "files": files, "batch_size": 4} | REFUSED[message]
    with pytest.raises((TypeError, ValueError), match=message):
        readers.batches(given.pop("reader"), **given)
