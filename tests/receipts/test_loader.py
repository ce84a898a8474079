"""Receipts of a Loader: exactly what it has given, whatever is left early, remade or replaced."""

import random
from itertools import islice

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from PIL import Image

from dali_storage import readers, receipts
from dali_storage.contract.errors import SampleReplaced
from dali_storage.loaders import Loader
from dali_storage.ranks import Shard
from tests.kit.receipts import of, sums
from tests.kit.tiers import by_tier

SIZE, BATCH = 22, 4


@pytest.fixture
def pictures(tmp_path):
    """JPEGs of several sizes."""
    generator = np.random.default_rng(0)
    for number in range(SIZE):
        pixels = generator.integers(0, 256, (8 + number // 3, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02}.jpg")
    return sorted(tmp_path.iterdir())


@pytest.fixture
def loader(pictures):
    """Makes a Loader of labels, with receipts; the label is the number of the picture."""

    def make(checkpoint, shard_id, num_shards, decode=False, **arguments):
        pipeline = Pipeline(BATCH, 1, None, enable_checkpointing=True, checkpoint=checkpoint)
        options = {"name": "Reader", "pad_last_batch": True, "receipt": "bytes", **arguments}
        names, labels = [*map(str, pictures)], [*range(SIZE)]
        shard = {"shard_id": shard_id, "num_shards": num_shards}
        with pipeline:
            data, label = readers.file(files=names, labels=labels, **shard, **options)
            images = [fn.resize(fn.decoders.image(data), size=(4, 4))] if decode else []
            pipeline.set_outputs(label, *images)
        return pipeline

    made = []

    def new(rank=0, world=1, last_batch="partial", **arguments):
        def making(**given):
            return make(**given, **arguments)

        made.append(Loader(making, to="numpy", last_batch=last_batch, shard=Shard(rank, world)))
        return made[-1]

    yield new
    for each in made:
        each.close()


def given_by(loader, batches):
    """The labels of the next batches, without padding."""
    found = []
    for batch in islice(loader, batches):
        found += np.asarray(batch[0]).ravel().tolist()[: loader.valid]
    return found


def want(pictures, labels):
    return sums([(pictures[it].name, pictures[it].read_bytes()) for it in labels], "bytes")


@pytest.mark.parametrize("last_batch", ["partial", "drop", "pad"])
@pytest.mark.parametrize("seed", range(by_tier(4, 30)))
def test_it_is_what_was_given(last_batch, seed, loader, pictures):
    draw = random.Random(seed)
    world = draw.choice([1, 2, 3])
    one = loader(0, world, last_batch, **draw.choice([{}, {"shuffle_after_epoch": True}]))
    for _ in range(6):
        if draw.random() < 0.3:
            one.set_epoch(draw.randrange(3))
        given = given_by(one, draw.choice([1, 2, 99]))
        if draw.random() < 0.3 and one.state_dict()["readers"]["Reader"]["given"]:
            state, one = one.state_dict(), loader(0, world, last_batch)
            # The order is no part of what is compared, so the new Loader may have another.
            if state["readers"]["Reader"]["shuffle_after_epoch"]:
                one = loader(0, world, last_batch, shuffle_after_epoch=True)
            one.load_state_dict(state)
            given += given_by(one, draw.choice([1, 2]))
        assert of(one.receipt()) == want(pictures, given)


def test_after_a_failed_operator_an_epoch_begins_again(loader, pictures):
    one, content = loader(decode=True), pictures[9].read_bytes()
    pictures[9].write_bytes(content[: len(content) // 2])
    given = []
    with pytest.raises(RuntimeError):  # the third batch fails
        for label, _ in one:
            given += label.ravel().tolist()
    pictures[9].write_bytes(content)
    assert len(given) == 2 * BATCH
    assert of(one.receipt(0)) == want(pictures, given)
    one.set_epoch(0)
    assert of(one.receipt(0))["count"] == len(given)
    assert [*map(len, (given_by(one, 99), given_by(one, 1)))] == [SIZE, BATCH]
    assert of(one.receipt(0)) == want(pictures, range(SIZE))


@pytest.mark.parametrize("backend", ["python-file", "memory"])  # read; and views, which are hot
def test_a_replaced_sample_counts_as_itself(backend, loader, pictures):
    content = pictures[5].read_bytes()
    pictures[5].write_bytes(content[: len(content) // 2])
    one = loader(decode=True, on_error="replace", backend=backend)
    with pytest.warns(SampleReplaced):
        given_by(one, 99)
    found = one.receipt()
    assert (found["count"], found["replaced"]) == (SIZE, 1)
    assert found["sum"] == want(pictures, {*range(SIZE)} - {5})["sum"]


@pytest.mark.parametrize("world", [3, 5])  # of 5 ranks, three are through after a batch
def test_other_ranks_go_on(world, loader, pictures):
    ranks = [loader(rank, world) for rank in range(world)]
    for each in ranks:
        given_by(each, 1)
    states = [each.state_dict() for each in ranks]
    joined = receipts.join(*[state["readers"]["Reader"] for state in states])
    states[0]["readers"]["Reader"] = joined
    others = [loader(rank, 2) for rank in range(2)]
    for each in others:
        with pytest.warns(UserWarning, match="random operators restart"):
            each.load_state_dict(states[0])
        given_by(each, 99)
    total = receipts.combine(*[each.receipt() for each in others])
    assert of(total) == want(pictures, range(SIZE))
