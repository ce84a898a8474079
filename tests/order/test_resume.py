"""readers.state() and resume=: an epoch that other ranks go on with.

The oracles are the labels of the samples, counted over all ranks, and the reader of DALI.
"""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.order import Order, OrderOptions
from dali_storage.order.resuming.resume import Rest, RestOrder, interleaved
from tests.kit import versions
from tests.kit.loading import Make, shard_size
from tests.kit.order_model import case_of
from tests.kit.parity import numbered, numbers
from tests.kit.resuming import (
    EPOCH,
    ORDERS,
    OURS,
    REAL,
    SIZE,
    WINDOW,
    begun,
    ranks,
    rounds,
    saved,
    shares,
    valid,
)
from tests.kit.tiers import by_tier

pytestmark, LONG = pytest.mark.usefixtures("pipelines_end"), pytest.mark.long


def real_epochs(world, batch_size, epochs, read=REAL, **order):
    """Of every rank the batches of some epochs, by the reader of DALI."""
    count, found = rounds(SIZE, world, batch_size), []
    for real in ranks(world, batch_size, read=read, **order):
        batches = numbers(real, (max(epochs) + 1) * count)
        found.append([batch for e in epochs for batch in batches[e * count : (e + 1) * count]])
    return found


WORLDS = [[(2, 3, 2), (3, 2, 1), (4, 3, 99)], [(1, 4, 3), (5, 2, 99)], [(2, 4, 4), (2, 3, 99)]]
WORLDS.append([(4, 3, 3), (4, 2, 99)])  # one sample is left


def assert_given_once(worlds, order, ours, real):
    """The worlds: numbers of ranks, their batch sizes, and how many batches each is given."""
    epoch = 2 * (len(worlds) % 2)
    state, left, seen = None, SIZE, Counter[int]()
    for step, (world, batch_size, batches) in enumerate(worlds):
        made = ranks(world, batch_size, state, read=ours, **order)
        if step == 0:
            for each in made:
                numbers(each, epoch * rounds(SIZE, world, batch_size))
        batches = min(batches, rounds(left, world, batch_size))
        for rank, each in enumerate(made):
            share = shares(left, world)[rank]
            if world == worlds[0][0] and (SIZE - left) % (world * batch_size) == 0:
                # In the order of the ranks that began the epoch.
                before = (SIZE - left) // world
                share = shard_size(Make(samples=SIZE, order=order), rank, world, epoch) - before
            seen.update(valid(numbers(each, batches), min(share, batches * batch_size)))
        left -= min(left, batches * batch_size * world)
        state = saved(made)
        assert (state["epoch"], state["given"]) == (epoch + (not left), SIZE - left if left else 0)
    assert seen == Counter(range(SIZE))
    coming = [numbers(each, 2 * rounds(SIZE, world, batch_size)) for each in made]
    assert coming == real_epochs(world, batch_size, [epoch + 1, epoch + 2], real, **order)


@pytest.mark.parametrize(
    ("order", "worlds"),
    [("window", worlds) for worlds in WORLDS]
    + [(order, WORLDS[1]) for order in ORDERS if order != "window"],
    ids=str,
)
def test_other_ranks_give_the_rest_of_an_epoch_once(order, worlds):
    assert_given_once(worlds, ORDERS[order], OURS, REAL)


@pytest.mark.parametrize(
    ("reader", "order"),
    [
        ("webdataset", WINDOW),
        pytest.param("webdataset", WINDOW | EPOCH, marks=versions.SHUFFLED_CONTAINERS),
        pytest.param("tfrecord", WINDOW | EPOCH, marks=versions.SHUFFLED_CONTAINERS),
        ("mxnet", EPOCH),
        pytest.param("caffe", WINDOW, marks=versions.CAFFE),
        ("numpy", WINDOW),
        ("records", EPOCH),  # DALI has no such readers; their order is that of files
        ("columns", WINDOW),
    ],
    ids=str,
)
def test_other_ranks_give_the_rest_of_other_readers_once(reader, order, tmp_path):
    made = numbered(reader, tmp_path, [7, 5, 9, 1, 15])
    real = made(fn.readers) if hasattr(fn.readers, reader) else REAL
    assert_given_once([(2, 4, 2), (3, 2, 99)], order, made(readers), real)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("world", "batch_size"), [pytest.param(1, 5, marks=LONG), (3, 4)])
def test_the_same_ranks_go_on_bit_for_bit(order, world, batch_size):
    """At every batch of two epochs, padding included."""
    count = rounds(SIZE, world, batch_size)
    real = real_epochs(world, batch_size, range(4), **ORDERS[order])
    for cut in [1, count, count + 2, 0, count - 1][: by_tier(2, 5)]:
        made = ranks(world, batch_size, **ORDERS[order])
        assert [numbers(each, cut) for each in made] == [batches[:cut] for batches in real]
        again = ranks(world, batch_size, saved(made), **ORDERS[order])
        for each, batches in zip(again, real, strict=True):
            assert numbers(each, count + 2) == batches[cut : cut + count + 2]


@pytest.mark.parametrize("order", ["window", "epoch"])
def test_a_rest_goes_on_bit_for_bit(order):
    """With padding, also where a rank has no sample left."""
    made = ranks(4, 5, state := begun(2, **ORDERS[order]), **ORDERS[order])
    expected = [numbers(each, 4) for each in made]  # two of the rest: 21 samples
    assert len({tuple(each[1]) for each in expected}) == 4
    for cut in (1, 2):
        made = ranks(4, 5, state, **ORDERS[order])
        for each in made:
            numbers(each, cut)
        again = ranks(4, 5, saved(made), **ORDERS[order])
        assert [numbers(each, 4 - cut) for each in again] == [each[cut:] for each in expected]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epoch", [pytest.param(0, marks=LONG), 1])
def test_a_whole_epoch_is_that_of_the_ranks_that_begin_it(order, epoch):
    others = ranks(3, 5, begun(epoch * rounds(SIZE, 2, 4), **ORDERS[order]), **ORDERS[order])
    coming = [numbers(each, 2 * rounds(SIZE, 3, 5)) for each in others]
    assert coming == real_epochs(3, 5, [epoch, epoch + 1], **ORDERS[order])


# --- The order, without a pipeline ---------------------------------------------------------------


@examples(st.randoms(use_true_random=False), st.booleans(), st.integers(0, 3), st.data())
def test_every_sample_is_given_once_whatever_ranks_go_on(random, containers, epoch, data):
    """Some ranks begin an epoch; then others go on, several times."""
    size, _, options, counts = case_of(random, containers)
    options = replace(options, pad_last_batch=True, num_shards=1, shard_id=0)
    began = replace(options, num_shards=data.draw(st.integers(1, min(size, 9)), "began"))
    world, batch_size = began.num_shards, data.draw(st.integers(1, 9), "batch size")
    count = rounds(size, world, batch_size)
    done = data.draw(st.integers(0, count - 1), "batches")
    seen = Counter[int]()
    for rank in range(world):
        first = Order(size, batch_size, replace(began, shard_id=rank), counts)
        batches = [first.batch(epoch * count + i).tolist() for i in range(done)]
        seen.update(valid(batches, done * batch_size))  # no padding before the last batch
    given = done * batch_size * world
    while given < size:
        world = data.draw(st.integers(1, min(size, 9)), "world")
        batch_size = data.draw(st.integers(1, 9), "batch size")
        rest = Rest(
            size=size, began=began, epoch=epoch, given=given, world=world, batch_size=batch_size
        )
        count = rounds(size - given, world, batch_size)
        assert rest.stop == (epoch + 1) * rounds(size, world, batch_size) == rest.start + count
        done = data.draw(st.integers(1, count), "batches")
        for rank in range(world):
            mine = replace(options, num_shards=world, shard_id=rank)
            going_on = RestOrder(size, batch_size, mine, counts, rest)
            share = shares(size - given, world)[rank]
            assert rest.shares()[rank] == share
            batches = [going_on.batch(rest.start + i).tolist() for i in range(done)]
            assert {len(batch) for batch in batches} == {batch_size}
            seen.update(valid(batches, min(share, done * batch_size)))
            following = Order(size, batch_size, mine, counts).batch(rest.stop)
            assert going_on.batch(rest.stop).tolist() == following.tolist()
        given = min(size, given + done * batch_size * world)
        assert rest.given_at(rest.start + done) == given
    assert seen == Counter(range(size))


def test_the_interleaved_order_is_the_same_in_all_versions():
    """A state of one version is resumed by another. Shards of 2, 2 and 3 samples."""
    began = OrderOptions(num_shards=3, pad_last_batch=True)
    assert interleaved(7, began, None, 0, 0).tolist() == [0, 2, 4, 1, 3, 5, 6]
    assert interleaved(7, began, None, 1, 2).tolist() == [0, 3, 5, 1, 6]  # shards rotate
    assert interleaved(7, replace(began, stick_to_shard=True), None, 1, 5).tolist() == [5, 6]
    rest = Rest(size=7, began=began, epoch=0, given=2, world=2, batch_size=2)
    assert [rest.entries(rank, None).tolist() for rank in (0, 1)] == [[4, 3, 6, 6], [1, 5, 5, 5]]


def test_batches_before_a_rest_are_not_given_again():
    rest = Rest(size=20, began=OrderOptions(), epoch=1, given=9, world=1, batch_size=4)
    order = RestOrder(20, 4, OrderOptions(pad_last_batch=True), None, rest)
    order.batch(7)[:] = 0  # the caller's own
    assert order.batch(7).tolist() == [9, 10, 11, 12]
    for index in (5, 6):
        with pytest.raises(ValueError, match=r"epoch 1, .* after 9 samples.*begins at batch 7"):
            order.batch(index)
    assert order.batch(4).tolist() == [16, 17, 18, 19]
