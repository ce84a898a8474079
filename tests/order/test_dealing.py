"""Streams dealt out: to ranks, in batches and epochs, and after resumes.

The oracles are the stream itself, whose positions are in test_sampling.py, and DALI's formula.
"""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from dali_storage.order import OrderOptions
from dali_storage.order.resuming.resume import StreamRest
from dali_storage.order.sampling.dealing import StreamOrder
from tests.kit.streams import cases, entries, stream


def ranks(made, world, batch_size, epoch=0, given=0):
    """The orders of all ranks, and the index of their first batch, as readers make them."""
    shards = [OrderOptions(num_shards=world, shard_id=r, pad_last_batch=True) for r in range(world)]
    wide = {"world": world, "batch_size": batch_size}
    rest = StreamRest(size=made.epoch_size, began=shards[0], epoch=epoch, given=given, **wide)
    left = None if rest.same is not None else rest
    start = rest.start if rest.same is None else rest.same
    return [StreamOrder(made, batch_size, shard, left) for shard in shards], start, rest


def own_shares(left, world):
    """How many of the samples left in an epoch DALI's iterators count for each rank."""
    return [left * (rank + 1) // world - left * rank // world for rank in range(world)]


def taken(batches, positions):
    """Check a batch of all ranks against the stream at its positions; the samples of each rank."""
    world, batch_size = len(batches), len(batches[0])
    if len(positions) == world * batch_size:
        runs = [positions[i * batch_size :][:batch_size] for i in range(world)]
        assert sorted(batches) == sorted(runs)  # the ranks take turns
        return [batch_size] * world
    for rank, (batch, share) in enumerate(
        zip(batches, own_shares(len(positions), world), strict=True)
    ):
        start = len(positions) * rank // world
        assert batch[:share] == positions[start : start + share]
        assert len(batch) == batch_size
        if share:
            assert set(batch[share:]) <= {batch[share - 1]}
    return own_shares(len(positions), world)


@st.composite
def chains(draw):
    """3 to 6 times: ranks, their batch size, and how many batches they are given."""
    each = st.tuples(st.integers(1, 8), st.integers(1, 9), st.integers(0, 5))
    return draw(st.lists(each, min_size=3, max_size=6))


@examples(cases(), chains(), st.integers(8, 200), st.integers(0, 2**63))
def test_ranks_give_the_stream_whoever_began_it(case, chain, size, seed):
    made = stream(*case, seed, epoch_size=size)
    state = json.dumps({"epoch": 0, "given": 0})
    for world, batch_size, batches in chain:
        epoch, given = json.loads(state).values()
        orders, index, rest = ranks(made, world, batch_size, epoch, given)
        shares = np.zeros(world, int)
        for _ in range(batches):
            wide = min(world * batch_size, size - given)
            start = epoch * size + given
            positions = entries(made, start, start + wide)
            found = [order.batch(index).tolist() for order in orders]
            shares += taken(found, positions)
            index, given = index + 1, given + wide
            if epoch == rest.epoch:
                assert rest.given_at(index) == given
            if given == size:
                if epoch == rest.epoch:  # the rest of an epoch, or a whole one
                    assert shares.tolist() == rest.shares().tolist()
                    assert shares.tolist() == own_shares(size - rest.given, world)
                assert index == (epoch + 1) * rest.rounds
                epoch, given = epoch + 1, 0
        state = json.dumps({"epoch": epoch, "given": given})


@examples(cases(), st.integers(1, 8), st.integers(1, 9), st.integers(8, 200))
def test_batches_come_alike_in_any_order(case, world, batch_size, size):
    made = stream(*case, epoch_size=size)
    (first, *_), start, rest = ranks(made, world, batch_size, 1, size // 3)
    (again, *_), _, _ = ranks(made, world, batch_size, 1, size // 3)
    indices = [*range(start, start + 6), *range(rest.rounds)]
    assert len({first.start(index) for index in indices}) == len(indices)
    forth = {index: first.batch(index).tolist() for index in indices}
    assert forth == {index: again.batch(index).tolist() for index in sorted(indices)[::-1]}


@examples(cases(), st.integers(1, 8), st.integers(1, 9), st.integers(8, 200), st.integers(0, 40))
def test_without_padding_batches_run_across_epochs(case, world, batch_size, size, index):
    made = stream(*case, epoch_size=size)
    options = [OrderOptions(num_shards=world, shard_id=rank) for rank in range(world)]
    orders = [StreamOrder(made, batch_size, each) for each in options]
    wide = world * batch_size
    for at in (index, index + 1, index + 300):
        found = [order.batch(at).tolist() for order in orders]
        assert taken(found, entries(made, at * wide, (at + 1) * wide)) == [batch_size] * world


def test_ranks_take_turns():
    """A source with 1 of the 128 samples of a global batch is on every rank about equally often."""
    made = stream([1000, 50], [(0, [127, 1])], epoch_size=128 * 2000)
    orders, _, _ = ranks(made, 4, 32)
    seen = Counter()
    for rank, order in enumerate(orders):
        found = np.concatenate([order.batch(index) for index in range(2000)])
        seen[rank] = int((found >= 1000).sum())
    assert sum(seen.values()) == 2000
    assert min(seen.values()) > 500 - 5 * (2000 * 3 / 16) ** 0.5


def test_a_batch_is_owned_by_the_caller():
    order = ranks(stream([9], [(0, [1])]), 1, 4)[0][0]
    expected = order.batch(1).tolist()
    order.batch(1)[:] = -1
    assert order.batch(1).tolist() == expected


REFUSED = [
    (lambda made: StreamOrder(made, 0, OrderOptions()), "batch_size must be at least 1"),
    (lambda made: ranks(made, 21, 4), "epoch_size must be at least num_shards"),
    (lambda made: ranks(made, 2, 4)[0][0].batch(-1), "index must be at least"),
    (lambda made: ranks(made, 2, 4, 1, 9)[0][0].batch(3), "epoch 1, .* 9 samples.*gins at batch 4"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[words for _, words in REFUSED])
def test_wrong_dealing_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(stream([15, 5], [(0, [1, 2])]))
