"""Saving and loading the state of a Loader; the oracle is the run without a stop."""

import copy
import io
import json
import pickle
import weakref
from dataclasses import replace
from itertools import chain, islice

import pytest
import torch

from dali_storage.loaders import Shard
from tests.kit.loading import SHUFFLES, Make, labels, numbers, place

MAKE = Make(order=SHUFFLES["window"])  # epochs of 6 batches


def values(batches):
    return [numbers(batch) for batch in batches]


def epochs(loader):
    """Batches without an end."""
    while True:
        yield from loader


def saved(loader):
    """A state that has been through JSON and through torch."""
    file = io.BytesIO()
    torch.save(json.loads(json.dumps(loader.state_dict())), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


GONE = dict.fromkeys(("world", "batch_size", "rank", "last_batch", "readers"), ...)


def changed(state, change):
    """The state with other values, of the reader if it has them, or without; or another object."""
    if not isinstance(change, dict):
        return change
    reader = state["readers"]["Reader"]
    own = {name: value for name, value in change.items() if name in reader.keys() - {"version"}}
    rest = {name: value for name, value in change.items() if name not in own}
    state = state | {"readers": {"Reader": reader | own}} | rest
    return {name: value for name, value in state.items() if value is not ...}


@pytest.mark.parametrize("order", ["window", "epoch"])
def test_a_state_goes_on_with_the_next_batch(loader, order):
    """At every place of two epochs, with the states of random operators; saving changes nothing."""
    make = Make(order=SHUFFLES[order])
    whole = values(islice(epochs(loader(make)), 24))
    states, seen = [], []
    first = loader(make)
    for epoch in range(2):
        states.append(saved(first))
        iterator = iter(first)
        states.append(saved(first))
        assert len(first) == 6
        for batch in iterator:
            seen.append(numbers(batch))
            states.append(saved(first))
            assert place(states[-1])[0] == epoch + (len(seen) == 6 * epoch + 6)
    assert seen == whole[:12]
    for number, state in enumerate(states):
        done = number // 8 * 6 + max(0, number % 8 - 1)
        assert divmod(done, 6) == place(state)
        other = loader(make)
        other.load_state_dict(state)
        iter(other)  # Lightning does this, too
        assert values(islice(epochs(other), 12)) == whole[done : done + 12]
        other.close()


@pytest.mark.parametrize("takes", [[2], [2, 0], [2, 3], [2, 6], [0, 1], [1, 1, 1], [6, 4]], ids=str)
@pytest.mark.parametrize("depth", [1, 3])
def test_a_state_is_right_after_epochs_that_were_left(loader, takes, depth):
    make = replace(MAKE, depth=depth)
    first = loader(make)
    for take in takes:
        iterator = iter(first)
        assert len(list(islice(iterator, take))) == take
    state = saved(first)
    expected = values(chain(iterator, first, first))
    other = loader(make)
    other.load_state_dict(state)
    assert values(islice(epochs(other), len(expected))) == expected


def test_a_state_replaces_what_the_loader_was_doing(loader):
    one = loader(MAKE)
    whole = values(islice(epochs(one), 18))
    other = loader(MAKE)
    old = iter(other)
    next(old)
    other.sampler.set_epoch(5)
    other.load_state_dict(one.state_dict())
    assert (other.epoch, len(other)) == (3, 6)
    with pytest.raises(RuntimeError, match=r"newer"):
        next(old)
    other.set_epoch(1)
    assert labels(other) == [batch[0] for batch in whole[6:12]]


def test_a_state_of_a_larger_shard_leaves_nothing_of_the_epoch_of_a_smaller_one(loader):
    """The larger shard has one batch more, before which its state was saved."""
    make = replace(MAKE, samples=17, order=SHUFFLES["sticky"])  # shards of 8 and 9 samples
    larger = loader(make, shard=Shard(1, 2))
    assert len(list(islice(larger, 2))) == 2
    state = saved(larger)
    whole = labels(islice(epochs(loader(make, shard=Shard(0, 2))), 4))
    for epochs_set, expected in (([], whole[2:]), ([0], []), ([0, 1], whole[2:])):
        other = loader(make, shard=Shard(0, 2))
        with pytest.warns(UserWarning, match="state is of rank 1, but this is rank 0"):
            other.load_state_dict(state)
        for epoch in epochs_set:
            other.set_epoch(epoch)
        assert labels(other) == expected


def test_a_state_of_another_rank_has_the_same_place_and_other_random_numbers(loader):
    """Lightning saves what rank 0 has."""
    ranks = [loader(MAKE, shard=Shard(rank, 2)) for rank in (0, 1)]
    whole = [values(islice(epochs(each), 9)) for each in ranks]
    ranks = [loader(MAKE, shard=Shard(rank, 2)) for rank in (0, 1)]
    list(islice(epochs(ranks[0]), 4))
    state = saved(ranks[0])
    with pytest.warns(UserWarning, match=r"state is of rank 0, but this is rank 1") as seen:
        ranks[1].load_state_dict(state)
    assert seen[0].filename == __file__
    other = loader(MAKE, shard=Shard(0, 2))
    other.load_state_dict(state)
    rests = [values(islice(epochs(each), 5)) for each in (other, ranks[1])]
    assert rests[0] == whole[0][4:]
    assert [batch[0] for batch in rests[1]] == [batch[0] for batch in whole[1][4:]]
    assert rests[1][0][1] == whole[1][0][1]  # anew


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (GONE | {"version": 1}, r"version 1 \(this release reads version 2\); load"),
        ({"last_batch": "drop"}, "last_batch='drop'.*last_batch='partial'"),
        ({"given": 22}, "given is 22"),
        ({"samples": 23}, "23 samples, but this reader has 22 samples"),
        ({"world": 0.5}, "world is 0.5"),
        ({"readers": []}, r"readers is \[\]"),
        ({"readers": {"Other": {}}}, "readers named Other, but the pipeline has Reader"),
        ({"readers": {"Reader": {}}}, "without a version"),
        ({"pipeline": None}, "pipeline is None"),
        ({"pipeline": "Z2Fy!YmFnZQ=="}, "not base64"),
        ({"pipeline": "Z2FyYmFnZQ=="}, "other operators.*or is damaged"),
        ({"pipeline": ""}, "other operators.*or is damaged"),
        ({"more": 1}, "more"),
        *(({name: ...}, name) for name in ("version", "readers", "pipeline", "rank")),
        *((state, "mapping") for state in (None, b"", [1], "{}")),
    ],
    ids=str,
)
@pytest.mark.parametrize("used", [False, True])
def test_a_state_that_does_not_fit_is_refused_and_nothing_is_lost(loader, used, change, words):
    whole = values(islice(epochs(loader(MAKE)), 12))
    one = loader(MAKE)
    iterator = iter(one)
    taken = values(islice(iterator, 3 if used else 0))
    state = changed(saved(loader(MAKE)), change)
    for _ in range(2):
        with pytest.raises(ValueError if isinstance(state, dict) else TypeError, match=words):
            one.load_state_dict(state)
    assert taken + values(chain(iterator, one)) == whole


def test_pickling_and_copying_a_loader_are_refused_with_the_remedy(loader):
    one = loader(MAKE)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"state_dict\(\)"):
            attempt(one)


def test_restoring_a_state_closes_the_pipeline_first(loader):
    """Its reader needs AIO contexts, of which the machine has a limited number."""
    made = []
    alive = []

    def make(**arguments):
        alive.append(sum(pipeline() is not None for pipeline in made))
        pipeline = MAKE(**arguments)
        made.append(weakref.ref(pipeline))
        return pipeline

    one = loader(make)
    one.load_state_dict(saved(one))
    one.load_state_dict(saved(one))
    assert alive == [0, 0, 0]
