"""A Loader's epochs, beside the reader of DALI."""

from itertools import chain, islice

import pytest
from hypothesis import example
from hypothesis import given as of
from hypothesis import strategies as st

from dali_storage.loaders import Loader, Shard
from tests.kit.loading import SHUFFLES, Make, given, labels, numbers, place, shard_size, stream

POLICIES = ["drop", "pad", "partial"]


@of(
    samples=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    world=st.integers(1, 3),
    order=st.sampled_from(sorted(SHUFFLES)),
    last_batch=st.sampled_from(POLICIES),
)
def test_all_ranks_together_give_every_sample_once(samples, batch_size, world, order, last_batch):
    world = min(world, samples)
    if last_batch == "drop":
        batch_size = min(batch_size, samples // world)
    make = Make(samples=samples, batch_size=batch_size, order=SHUFFLES[order])
    ranks = [
        Loader(make, shard=Shard(rank, world), last_batch=last_batch, to="numpy")
        for rank in range(world)
    ]
    real = [[stream(make, rank, world, output) for output in (0, 1)] for rank in range(world)]
    in_step = [True] * world  # a batch that DALI drops takes random numbers, too
    for epoch in range(3):
        lengths = [len(each) for each in ranks]
        batches = []
        for rank, each in enumerate(ranks):
            batches.append([])
            drawn = []
            for batch in each:
                assert each.epoch == epoch
                given_labels, random = numbers(batch)
                before = len(batches[-1]) * batch_size
                left = shard_size(make, rank, world, epoch) - before
                assert each.valid == max(0, min(batch_size, left))
                batches[-1].append(given_labels)
                drawn.append(random)
            labels_of, random_of = (
                given(make, of_dali(epoch), epoch, last_batch, rank, world)
                for of_dali in real[rank]
            )
            assert batches[-1] == labels_of
            assert drawn == random_of or not in_step[rank]
            in_step[rank] &= len(drawn) == len(real[rank][1](epoch))
        assert [len(each) for each in batches] == lengths
        assert all(lengths)
        everything = sorted(chain(*chain(*batches)))
        full = {len(batch) for rank in batches for batch in rank} == {batch_size}
        assert last_batch == "partial" or (full and len(set(lengths)) == 1)
        assert last_batch == "drop" or set(everything) == set(range(samples))
        assert last_batch == "pad" or len(set(everything)) == len(everything)
    for each in ranks:
        each.close()


@example(
    order="list",
    last_batch="pad",
    steps=[("take", 2), ("restore", 0), ("take", 1), ("set_epoch", 0), ("take", 1)],
)
@example(  # set_epoch() with the saved epoch keeps its place
    order="window",
    last_batch="partial",
    steps=[("take", 1), ("restore", 0), ("set_epoch", 2), ("set_epoch", 0), ("take", 2)],
)
@pytest.mark.filterwarnings("ignore:the loaded state is in epoch")
@of(
    order=st.sampled_from(sorted(SHUFFLES)),
    last_batch=st.sampled_from(POLICIES),
    steps=st.lists(
        st.one_of(
            st.integers(0, 8).map(lambda batches: ("take", batches)),
            st.integers(0, 5).map(lambda epoch: ("set_epoch", epoch)),
            st.integers(0, 5).map(lambda epoch: ("sampler", epoch)),
            st.just(("restore", 0)),
        ),
        max_size=8,
    ),
)
def test_any_sequence_of_steps_gives_the_batches_of_its_epochs(order, last_batch, steps):
    """Rank 1 of 3 has epochs of 12, 12 and 11 samples: with "partial", 3, 3 and 3 batches."""
    make = Make(samples=35, order=SHUFFLES[order])
    expected = stream(make, 1, 3)
    options = {"shard": Shard(1, 3), "last_batch": last_batch, "to": "numpy"}
    loader = Loader(make, **options)
    start = here = 0, 0  # an epoch, and how many of its batches were given
    restored = fixed = None
    for step, number in steps:
        if step in ("set_epoch", "sampler"):
            (loader if step == "set_epoch" else loader.sampler).set_epoch(number)
            fixed = number if step == "sampler" else None
            coming = restored if restored and restored[0] == number else (number, 0)
            start, here = coming, coming if here == start else here
        elif step == "restore":
            state = loader.state_dict()
            loader.close()
            loader = Loader(make, **options)
            loader.load_state_dict(state)
            assert place(state) == here
            start, restored, fixed = here, here, None
        else:
            start = start if fixed in (None, start[0]) else (fixed, 0)
            iter(loader)
            iterator, here = iter(loader), start
            rest = given(make, expected(start[0]), start[0], last_batch, 1, 3)
            assert (loader.epoch, len(loader)) == (start[0], len(rest))
            taken = [batch for batch in (next(iterator, None) for _ in range(number)) if batch]
            assert labels(taken) == rest[start[1] : start[1] + number]
            if number:
                here, start, restored = (start[0], start[1] + len(taken)), (start[0] + 1, 0), None
                if here[1] == len(rest):
                    here = start
        coming = start[0] if fixed is None else fixed
        epoch = here[0] if here != start else coming
        assert len(loader) == len(given(make, expected(epoch), epoch, last_batch, 1, 3))
    assert loader.batch_sampler.batch_size == 4  # as Lightning's DeepSpeed asks
    loader.close()


def test_a_newer_iterator_ends_an_older_one(loader):
    """Silence would be a loop that sees a part of the data."""
    one = loader(Make())
    first, second = iter(one), iter(one)
    assert labels(islice(second, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert one.epoch == 0
    assert labels(islice(first, 1)) == [[0, 1, 2, 3]]  # it begins an epoch now
    assert one.epoch == 1
    iter(one)
    for old in (first, second, zip(one, one, strict=True)):
        with pytest.raises(RuntimeError, match="two Loaders for two loops"):
            list(old)
    last = iter(one)
    assert one.epoch == 4
    assert len(list(islice(last, 6))) == 6
    next(iter(one))
    assert list(last) == []  # complete
