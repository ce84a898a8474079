"""Iterators of DALI over readers that go on with an epoch of others."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest
from nvidia.dali.plugin.base_iterator import LastBatchPolicy

from dali_storage import readers
from tests.kit.parity import numbers
from tests.kit.resuming import (
    ORDERS,
    REAL,
    SIZE,
    WINDOW,
    begun,
    files,
    pipeline,
    ranks,
    rounds,
    saved,
    shares,
)
from tests.kit.tiers import by_tier

pytorch = pytest.importorskip("nvidia.dali.plugin.pytorch")
pytestmark = pytest.mark.usefixtures("pipelines_end")

FILL, PARTIAL, DROP = LastBatchPolicy.FILL, LastBatchPolicy.PARTIAL, LastBatchPolicy.DROP


def iterator(made, policy, **options):
    more = {"reader_name": "R", "auto_reset": True, "last_batch_policy": policy} | options
    return pytorch.DALIGenericIterator(made, ["label"], **more)


def values(batch):
    return [each["label"].ravel().tolist() for each in batch]


def epochs(it, number):
    return [[values(batch) for batch in it] for _ in range(number)]


def real_iterations(world, batch_size, policy, **order):
    """Of every rank the epochs of an iterator over the reader of DALI."""
    made = ranks(world, batch_size, read=REAL, **order)
    return [epochs(iterator(each, policy), 5) for each in made]


@pytest.mark.parametrize(
    ("policy", "order", "prepare"),
    [
        (FILL, "list", True),
        (PARTIAL, "list", False),
        (PARTIAL, "window", True),
        (PARTIAL, "epoch", True),
        (DROP, "list", True),
        (DROP, "sticky", False),
    ],
)
def test_an_iterator_goes_on_with_the_same_ranks(policy, order, prepare):
    """At every batch of its second epoch; before it, too, when it has prepared its first batch."""
    for rank, real in enumerate(real_iterations(2, 4, policy, **ORDERS[order])):
        for cut in range(0, len(real[1]) + 1, by_tier(2, 1)):
            made = pipeline(rank, 2, 4, **ORDERS[order])
            first = iterator(made, policy, prepare_first_batch=prepare)
            assert (readers.state(made, "R")["epoch"], readers.state(made, "R")["given"]) == (0, 0)
            assert epochs(first, 1) == real[:1]
            assert [values(batch) for batch in islice(first, cut)] == real[1][:cut]
            made = pipeline(rank, 2, 4, saved([made]), **ORDERS[order])
            again = iterator(made, policy, prepare_first_batch=prepare)
            expected = [real[1][cut:], *real[2:]] if cut < len(real[1]) else real[2:]
            assert epochs(again, len(expected)) == expected


@pytest.mark.parametrize("order", ["window", pytest.param("epoch", marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", [FILL, PARTIAL, DROP])
@pytest.mark.parametrize(("world", "batch_size"), [(3, 4), (5, 3), (1, 8)])
def test_an_iterator_goes_on_with_other_ranks(world, batch_size, policy, order):
    """13 samples of the second epoch are given by others; then epochs are whole."""
    made, left = ranks(2, 4, **ORDERS[order]), Counter(range(SIZE))
    for each in made:
        left.subtract(chain(*numbers(each, 5 + 3)[5:]))
    state = saved(made)
    assert left.total() == 13
    going_on = ranks(world, batch_size, state, **ORDERS[order])
    if policy is DROP and SIZE % world and SIZE // world % batch_size == 0:
        with pytest.raises(ValueError, match=r"'R': with LastBatchPolicy.DROP.*PARTIAL or FILL"):
            iterator(going_on[0], policy)
        return
    seen = [epochs(iterator(each, policy), 3) for each in going_on]
    count = rounds(13, world, batch_size)
    if policy is DROP:
        count = 13 // world // batch_size
    whole = real_iterations(world, batch_size, policy, **ORDERS[order])
    if count:
        rests = [each.pop(0) for each in seen]
        assert {len(rest) for rest in rests} == {count}
        given = [[label for (labels,) in rest for label in labels] for rest in rests]
        for rank, share in enumerate(shares(13, world)):
            samples = share if policy is PARTIAL else count * batch_size
            assert len(given[rank]) == samples
            valid_ones = given[rank][: min(share, samples)]
            assert set(given[rank][share:]) <= set(valid_ones[-1:]) or not share
            left.subtract(valid_ones)
    assert set(left.values()) <= {0, 1}
    assert left.total() == (13 - world * count * batch_size if policy is DROP else 0)
    assert [each[:2] for each in seen] == [each[2:4] for each in whole]


def test_an_iterator_of_several_pipelines_goes_on():
    seen = epochs(iterator(ranks(3, 2, begun(3)), PARTIAL), 2)
    assert [[len(each) for each in batch] for batch in seen[0]] == [[2, 2, 2], [2, 2, 2], [1, 0, 0]]
    assert sorted(chain(*chain(*seen[0]))) == [*range(12, 18), *range(30, 37)]
    whole = real_iterations(3, 2, PARTIAL)
    together = zip(*[each[1] for each in whole], strict=True)
    assert seen[1] == [[labels for (labels,) in batches] for batches in together]


@pytest.mark.parametrize(
    ("world", "batch_size", "policy", "batches"),
    [(2, 4, PARTIAL, 3), (3, 4, PARTIAL, 3), (3, 5, DROP, 2)],
)
def test_every_epoch_may_have_an_iterator_of_its_own(world, batch_size, policy, batches):
    made = pipeline(0, world, batch_size, state := begun(batches))
    expected = epochs(iterator(pipeline(0, world, batch_size, state), policy), 3)
    options = {"auto_reset": False, "prepare_first_batch": False}
    assert [epochs(iterator(made, policy, **options), 1)[0] for _ in range(3)] == expected


def test_the_iteration_of_a_rest_may_be_begun_twice():
    """DALI goes on in the epoch, and logs that it cannot be reset."""
    state = begun()
    expected = epochs(iterator(pipeline(0, 3, 4, state), PARTIAL), 2)
    assert [len(labels) for (labels,) in expected[0]] == [4, 3]
    it = iterator(pipeline(0, 3, 4, state), PARTIAL)
    before = [values(batch) for batch in islice(it, 1)]
    seen = epochs(it, 2)
    assert [before + seen[0], seen[1]] == expected


def test_the_rest_of_an_epoch_may_be_dropped_as_a_whole():
    """36 samples, three ranks, batches of 12: 4 samples are left for each."""
    made = pipeline(1, 3, 12, begun(3, read=files(36)), read=files(36))
    assert epochs(iterator(made, DROP), 2) == [[[[*range(24, 36)]]], [[[*range(12)]]]]


@pytest.mark.long  # to import JAX takes seconds
def test_an_iterator_of_jax_goes_on():
    jax = pytest.importorskip("nvidia.dali.plugin.jax", exc_type=ImportError)
    (going_on,) = ranks(1, 5, state := begun(3))
    it = jax.DALIGenericIterator(going_on, ["label"], reader_name="R", auto_reset=True)
    history = [*state["history"], [0, 24, 2, 1, 5]]
    assert readers.state(going_on, "R") == state | {"history": history}
    seen = [np.asarray(batch["label"]).ravel().tolist() for batch in it]
    assert [len(batch) for batch in seen] == [5, 5, 5]
    assert sorted(list(chain(*seen))[:13]) == [*range(12, 18), *range(30, 37)]
    assert len(list(it)) == 8


def test_a_batch_that_an_iterator_keeps_was_not_delivered():
    """The peekable iterator of JAX keeps it in `_peek`; it needs the package clu."""
    it = iterator(made := pipeline(0, 2, 4), FILL)
    list(islice(it, 2))
    before = readers.state(made, "R")
    it._peek = next(it)
    assert readers.state(made, "R") == before
    it._peek = None
    assert readers.state(made, "R")["given"] == before["given"] + 8


@pytest.mark.parametrize("policy", [FILL, PARTIAL, DROP])
@pytest.mark.parametrize("cut", range(4))
def test_a_checkpoint_of_a_rest_restores_it(policy, cut):
    """Two batches, or one that is not dropped. Also at their end, before or after StopIteration."""
    order, options = WINDOW | {"read": files(36)}, {"enable_checkpointing": True}
    began = ranks(1, 23, **order)
    numbers(began[0], 1)
    made = pipeline(1, 4, 3, state := saved(began), options=options, **order)
    it = iterator(made, policy, auto_reset=False)
    batches = [values(batch) for batch in islice(it, cut)]
    (checkpoint,) = it.checkpoints()
    restored = pipeline(1, 4, 3, options=options | {"checkpoint": checkpoint}, **order)
    again = iterator(restored, policy, auto_reset=False)
    expected = epochs(iterator(pipeline(1, 4, 3, state, **order), policy), 4)
    assert [len(epoch) for epoch in expected] == [1 if policy is DROP else 2, 3, 3, 3]
    assert batches == expected[0][:cut]
    if cut < len(expected[0]):
        assert readers.state(restored, "R") == readers.state(made, "R")
        assert [values(batch) for batch in again] == expected[0][cut:]
        again.reset()
    for epoch in expected[1:]:
        assert [values(batch) for batch in again] == epoch
        again.reset()


def test_an_iterator_needs_the_name_of_the_reader():
    state = begun()
    for options in ({"size": SIZE}, {"size": 18, "last_batch_padded": True}):
        with pytest.warns(Warning, match="reader_name"), pytest.raises(ValueError, match="='R'"):
            iterator(pipeline(0, 3, 4, state), PARTIAL, reader_name=None, **options)
    endless = iterator(pipeline(0, 3, 4, state), FILL, reader_name=None)
    assert len(list(islice(endless, 20))) == 20


def test_pipelines_of_an_iterator_must_be_at_one_place():
    states = begun(), begun(1), None
    for one, other in ((0, 1), (0, 2), (2, 0)):
        made = [pipeline(rank, 2, 4, states[which]) for rank, which in enumerate((one, other))]
        with pytest.raises(ValueError, match="resumed from the same state"):
            iterator(made, FILL)
    real = pipeline(1, 2, 4, read=REAL)
    for mixed in ([pipeline(0, 2, 4, states[0]), real], [real, pipeline(0, 2, 4, states[0])]):
        with pytest.raises(ValueError, match="resumed from the same state"):
            iterator(mixed, FILL)
