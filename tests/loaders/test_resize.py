"""A state in mid-epoch goes on with other numbers of ranks and batch sizes; the oracle is DALI."""

import json
import warnings
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain, islice, zip_longest

import pytest

from dali_storage.loaders import Loader, Shard
from tests.kit.loading import (
    SHUFFLES,
    Make,
    given,
    labels,
    numbers,
    shard_size,
    stream,
    two_readers,
)

MAKE = Make(samples=37, order=SHUFFLES["window"])  # 2 ranks have shards of 18 and 19: 5 batches


def of_ranks(make, world, epoch):
    """The samples of an epoch that DALI gives to each rank, without padding."""
    return [
        list(chain(*stream(make, rank, world)(epoch)))[: shard_size(make, rank, world, epoch)]
        for rank in range(world)
    ]


def interleaved(ranks):
    """The first samples of all ranks, then the second ones and so on."""
    return [label for row in zip_longest(*ranks) for label in row if label is not None]


def batches(ranks, size, last_batch):
    """The batches of each rank, padding left out."""
    cut = [[rank[at : at + size] for at in range(0, len(rank), size)] for rank in ranks]
    if last_batch == "drop":
        full = min(map(len, ranks)) // size
        return [rank[:full] for rank in cut]
    most = max(map(len, cut))
    return [rank + [[]] * (most - len(rank)) * (last_batch == "pad") for rank in cut]


def restored(stack, make, shard, last_batch, state):
    """A loader that goes on from a state, which has been through JSON, or from an epoch."""
    loader = stack.enter_context(Loader(make, shard=shard, last_batch=last_batch, to="numpy"))
    if isinstance(state, int):
        loader.set_epoch(state)
        return loader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader.load_state_dict(json.loads(json.dumps(state)))
    return loader


def take(loader, expected, count):
    """Compare the next batches of a loader, and give its state then."""
    done = len(loader) - len(expected)
    for number, batch in enumerate(islice(loader, count)):
        found = numbers(batch)[0]
        assert found[: loader.valid] == expected[number]
        assert loader.valid == len(expected[number])
        assert len(loader) == done + len(expected) or number + 1 == len(expected)
    return loader.state_dict()


@pytest.mark.parametrize(
    ("samples", "order", "last_batch", "epoch", "parts"),
    [
        (37, "list", "partial", 0, [(2, 4, 2), (3, 4, 9)]),
        (37, "window", "pad", 1, [(2, 4, 2), (3, 4, 1), (3, 4, 0), (2, 2, 9)]),
        (40, "epoch", "drop", 2, [(4, 3, 1), (1, 12, 1), (2, 6, 9)]),
        (10, "list", "drop", 0, [(2, 2, 1), (1, 8, 9)]),  # the rest is dropped as a whole
        (9, "sticky", "pad", 0, [(2, 4, 1), (3, 4, 9)]),  # one sample is left for three ranks
        (10, "sticky", "partial", 0, [(2, 4, 1), (3, 4, 9)]),
    ],
)
def test_ranks_that_go_on_with_a_state_give_the_rest_of_the_epoch_once(
    samples, order, last_batch, epoch, parts
):
    """The parts are ranks, batch size and batches. tests/order draws them at random."""
    make = Make(samples=samples, order=SHUFFLES[order])
    ranks = of_ranks(make, parts[0][0], epoch)  # these determine the order
    everything, state, done = interleaved(ranks), epoch, 0
    for world, batch_size, count in parts:
        make = replace(make, batch_size=batch_size)
        ranks = [everything[done:][rank::world] for rank in range(world)] if done else ranks
        states = []
        for rank, expected in enumerate(batches(ranks, batch_size, last_batch)):
            with ExitStack() as stack:
                loader = restored(stack, make, Shard(rank, world), last_batch, state)
                assert loader.epoch == epoch + (not expected)
                if expected:
                    states.append(take(loader, expected, count))
                if (world, batch_size, count) == parts[-1]:
                    real = stream(make, rank, world)(epoch + 1)
                    whole = given(make, real, epoch + 1, last_batch, rank, world)
                    assert len(loader) == len(whole)
                    assert labels(loader) == whole
        state = states[-1] if states else None
        assert count == 9 or all(each["readers"] == state["readers"] for each in states)
        done += count * world * batch_size


def resumed(world, rank, stack, make=MAKE):
    """A loader of a rank of `world`, after two batches of two ranks in epoch 1."""
    first = stack.enter_context(Loader(MAKE, shard=Shard(0, 2), last_batch="pad", to="numpy"))
    first.set_epoch(1)
    return restored(stack, make, Shard(rank, world), "pad", take_two(first))


def take_two(loader):
    assert len(list(islice(loader, 2))) == 2
    return loader.state_dict()


def test_a_warning_says_which_ranks_have_saved_the_state():
    with Loader(MAKE, shard=Shard(0, 2), to="numpy") as first:
        state = take_two(first)
    smaller = replace(MAKE, batch_size=3)
    for make, world, size in ((MAKE, 3, 4), (smaller, 3, 3), (smaller, 2, 3)):
        words = f"2 ranks .* 4, but here are {world} with batches of {size}: .* operators restart"
        with (
            Loader(make, shard=Shard(0, world), to="numpy") as other,
            pytest.warns(UserWarning, match=words) as seen,
        ):
            other.load_state_dict(state)
        assert seen[0].filename == __file__


def test_the_rest_of_an_epoch_is_left_and_begun_again():
    """set_epoch() with the saved epoch goes on in it; later it gives the whole epoch."""
    whole = [stream(MAKE, 1, 3)(epoch) for epoch in range(3)]
    with ExitStack() as stack:
        rest = labels(resumed(3, 1, stack))
        assert len(rest) == 2  # of 21 samples, 7 a rank
        for epochs, expected in (
            ([1], [rest, whole[2]]),
            ([0, 1], [rest, whole[2]]),
            ([2], [whole[2]]),
            ([0], [whole[0], whole[1], whole[2]]),
        ):
            loader = resumed(3, 1, stack)
            for epoch in epochs:
                loader.set_epoch(epoch)
            assert [labels(loader) for _ in expected] == expected
        for before in (1, 2):  # batches of the rest, and the whole epoch afterwards
            loader = resumed(3, 1, stack)
            assert labels(islice(loader, before)) == rest[:before]
            loader.set_epoch(1)
            assert len(loader) == len(whole[1])
            assert [labels(loader), labels(loader)] == [whole[1], whole[2]]


@pytest.mark.parametrize("make", [MAKE, replace(MAKE, batch_size=3)], ids=["4", "3"])
def test_the_rest_of_an_epoch_survives_an_error_and_a_state(make):
    """Random operators, too, go on bit for bit with as many ranks."""
    with ExitStack() as stack:
        expected = [numbers(batch) for batch in chain(*[resumed(3, 1, stack, make)] * 2)]
        loader = resumed(3, 1, stack, make)
        found = [numbers(next(iter(loader)))]
        state = loader.state_dict()
        with pytest.raises(ValueError, match="last_batch"):
            loader.load_state_dict(state | {"last_batch": "drop"})
        with pytest.raises(ValueError, match="CRC-32"):
            reader = state["readers"]["Reader"] | {"names": 7}
            loader.load_state_dict(state | {"readers": {"Reader": reader}})
        assert loader.state_dict() == state
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            other = stack.enter_context(
                Loader(make, shard=Shard(1, 3), last_batch="pad", to="numpy")
            )
            other.load_state_dict(state)
        found += [numbers(batch) for batch in chain(other, other)]
        assert found == expected
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loader.load_state_dict(loader.state_dict())
        assert [numbers(batch) for batch in chain(loader, loader)] == expected[1:]


def test_random_operators_go_on_when_the_whole_epoch_is_begun_again():
    with ExitStack() as stack:
        loader = resumed(3, 1, stack)
        expected = [numbers(batch)[1] for batch in chain(loader, loader)]
        loader = resumed(3, 1, stack)
        found = [numbers(next(iter(loader)))[1]]
        loader.set_epoch(1)
        found += [numbers(batch)[1] for batch in loader]
        assert found == expected[: len(found)]


def test_a_whole_epoch_after_a_rest_goes_on_when_its_pipeline_is_made_anew():
    whole = stream(MAKE, 1, 3)(1)
    with ExitStack() as stack:
        loader = resumed(3, 1, stack)
        assert labels(islice(loader, 1)) != whole[:1]
        loader.set_epoch(1)
        epoch = iter(loader)
        found = labels(islice(epoch, len(whole) - 1))
        loader._supply._batches.sound = False
        assert found + labels(epoch) == whole


def test_all_readers_of_a_pipeline_go_on_from_a_state():
    make = two_readers(MAKE)
    with Loader(make, shard=Shard(0, 2), to="numpy") as first:
        state = take_two(first)
    with ExitStack() as stack:
        loader = restored(stack, make, Shard(1, 3), "partial", state)
        batches = [numbers(batch) for batch in loader]
    expected = interleaved(of_ranks(MAKE, 2, 0))[16:][1::3]
    assert list(chain(*(images for images, _ in batches))) == expected
    assert all(images == masks for images, masks in batches)
