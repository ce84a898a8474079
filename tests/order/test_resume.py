"""readers.state() and resume=: an epoch that other ranks go on with.

The oracles are the labels of the samples, counted over all ranks, and the reader of DALI.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st
from nvidia.dali import Pipeline, fn, types
from nvidia.dali import tfrecord as dali_tfrecord
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.jax import DALIGenericIterator as JaxIterator
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dali_storage import readers
from dali_storage.dali import source
from dali_storage.order import Order, OrderOptions
from dali_storage.order.resume import Rest, RestOrder, interleaved
from tests.kit.containers import (
    write_numbered_recordios,
    write_numbered_tars,
    write_numbered_tfrecords,
)
from tests.kit.loading import FILE

pytestmark = pytest.mark.usefixtures("pipelines_end")

SIZE = 37
ORDERS: dict[str, dict[str, Any]] = {
    "list": {},
    "window": {"random_shuffle": True, "initial_fill": 7, "seed": 5},
    "sticky": {"random_shuffle": True, "seed": 5, "stick_to_shard": True},
    "epoch": {"shuffle_after_epoch": True},
    "checkpointing": {"shuffle_after_epoch": True, "options": {"enable_checkpointing": True}},
}
WINDOW, EPOCH = ORDERS["window"], ORDERS["epoch"]
State = dict[str, Any]


def pipeline(
    rank: int,
    world: int,
    batch_size: int,
    resume: State | None = None,
    *,
    size: int = SIZE,
    file: Any = readers.file,
    options: dict[str, Any] | None = None,
    **order: Any,
) -> Pipeline:
    """A pipeline of labels, which are the places of the samples in the list."""
    made = Pipeline(batch_size, num_threads=1, device_id=None, **options or {})
    ours = {} if file is not readers.file else {"backend": "memory", "resume": resume}
    with made:
        _, labels = file(
            files=[str(FILE)] * size,
            labels=list(range(size)),
            name="R",
            shard_id=rank,
            num_shards=world,
            **{"pad_last_batch": True} | ours | order,
        )
        made.set_outputs(labels)
    return made


def take(made: Pipeline, batches: int) -> list[list[int]]:
    return [np.asarray(made.run()[0].as_array()).ravel().tolist() for _ in range(batches)]


def ranks(world: int, *arguments: Any, **options: Any) -> list[Pipeline]:
    return [pipeline(rank, world, *arguments, **options) for rank in range(world)]


def rounds(size: int, world: int, batch_size: int) -> int:
    """Batches of an epoch; documentation of DALI, "Sharding"."""
    return math.ceil(math.ceil(size / world) / batch_size)


def saved(pipelines: Iterable[Pipeline]) -> State:
    """The state, the same on all ranks, after a way through JSON."""
    one, *others = [json.dumps(readers.state(each, "R")) for each in pipelines]
    assert set(others) <= {one}
    assert len(one) < 400
    state: State = json.loads(one)
    return state


def valid(batches: list[list[int]], share: int) -> list[int]:
    """The samples of a rank, less padding, which repeats the last sample."""
    flat = list(chain(*batches))
    assert not share or set(flat[share:]) <= {flat[share - 1]}
    return flat[:share]


def shares(left: int, world: int) -> list[int]:
    return [len(range(rank, left, world)) for rank in range(world)]


def whole_epoch(rank: int, world: int, size: int, epoch: int, order: dict[str, Any]) -> int:
    moves = not order.get("stick_to_shard") and not order.get("shuffle_after_epoch")
    shard = (rank + epoch * moves) % world
    return size * (shard + 1) // world - size * shard // world


def real_epochs(world: int, batch_size: int, epochs: Sequence[int], **order: Any) -> list[Any]:
    """Of every rank the batches of some epochs, by the reader of DALI."""
    count, found = rounds(SIZE, world, batch_size), []
    for real in ranks(world, batch_size, file=fn.readers.file, dont_use_mmap=True, **order):
        batches = take(real, (max(epochs) + 1) * count)
        found.append([batch for e in epochs for batch in batches[e * count : (e + 1) * count]])
    return found


WORLDS = [
    [(2, 4, 2), (3, 4, 99)],
    [(3, 4, 1), (2, 4, 99)],
    [(2, 3, 2), (3, 2, 1), (4, 3, 99)],
    [(1, 4, 3), (5, 2, 99)],
    [(2, 4, 4), (2, 3, 99)],
    [(2, 4, 2), (3, 1, 2), (2, 5, 1), (2, 4, 99)],
    [(4, 3, 3), (4, 2, 99)],  # one sample is left
    [(3, 4, 3), (5, 4, 99)],
]


@pytest.mark.parametrize(
    ("order", "worlds"),
    [("window", worlds) for worlds in WORLDS]
    + [(order, worlds) for order in ORDERS if order != "window" for worlds in WORLDS[2:4]],
    ids=str,
)
def test_ranks_that_go_on_give_every_sample_of_the_epoch_once(
    order: str, worlds: list[tuple[int, int, int]]
) -> None:
    """The worlds: numbers of ranks, their batch sizes, and how many batches each is given."""
    epoch = 2 * (len(worlds) % 2)
    state, left, seen = None, SIZE, Counter[int]()
    for step, (world, batch_size, batches) in enumerate(worlds):
        made = ranks(world, batch_size, state, **ORDERS[order])
        if step == 0:
            for each in made:
                take(each, epoch * rounds(SIZE, world, batch_size))
        batches = min(batches, rounds(left, world, batch_size))
        for rank, each in enumerate(made):
            share = shares(left, world)[rank]
            if world == worlds[0][0] and (SIZE - left) % (world * batch_size) == 0:
                # In the order of the ranks that began the epoch.
                before = (SIZE - left) // world
                share = whole_epoch(rank, world, SIZE, epoch, ORDERS[order]) - before
            seen.update(valid(take(each, batches), min(share, batches * batch_size)))
        left -= min(left, batches * batch_size * world)
        state = saved(made)
        assert (state["epoch"], state["given"]) == (epoch + (not left), SIZE - left if left else 0)
    assert seen == Counter(range(SIZE))
    coming = [take(each, 2 * rounds(SIZE, world, batch_size)) for each in made]
    assert coming == real_epochs(world, batch_size, [epoch + 1, epoch + 2], **ORDERS[order])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("world", "batch_size"), [(1, 5), (3, 4)])
def test_the_same_ranks_go_on_bit_for_bit(order: str, world: int, batch_size: int) -> None:
    """At every batch of two epochs, padding included."""
    count = rounds(SIZE, world, batch_size)
    real = real_epochs(world, batch_size, range(4), **ORDERS[order])
    for cut in {0, 1, count - 1, count, count + 2}:
        made = ranks(world, batch_size, **ORDERS[order])
        assert [take(each, cut) for each in made] == [batches[:cut] for batches in real]
        again = ranks(world, batch_size, saved(made), **ORDERS[order])
        for each, batches in zip(again, real, strict=True):
            assert take(each, count + 2) == batches[cut : cut + count + 2]


@pytest.mark.parametrize("order", ["window", "epoch"])
def test_a_rest_goes_on_bit_for_bit(order: str) -> None:
    """With padding, also where a rank has no sample left."""
    began = ranks(2, 4, **ORDERS[order])
    for each in began:
        take(each, 2)
    made = ranks(4, 5, state := saved(began), **ORDERS[order])
    expected = [take(each, 4) for each in made]  # two of the rest: 21 samples
    assert len({tuple(each[1]) for each in expected}) == 4
    for cut in (1, 2):
        made = ranks(4, 5, state, **ORDERS[order])
        for each in made:
            take(each, cut)
        again = ranks(4, 5, saved(made), **ORDERS[order])
        assert [take(each, 4 - cut) for each in again] == [each[cut:] for each in expected]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_whole_epoch_is_that_of_the_ranks_that_begin_it(order: str, epoch: int) -> None:
    made = ranks(2, 4, **ORDERS[order])
    for each in made:
        take(each, epoch * rounds(SIZE, 2, 4))
    others = ranks(3, 5, saved(made), **ORDERS[order])
    coming = [take(each, 2 * rounds(SIZE, 3, 5)) for each in others]
    assert coming == real_epochs(3, 5, [epoch, epoch + 1], **ORDERS[order])


# --- The order, without a pipeline ---------------------------------------------------------------


@st.composite
def orders(draw: st.DrawFn) -> tuple[int, OrderOptions, list[int] | None]:
    """A number of samples, an order of them, and their containers."""
    containers = draw(st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=9))
    size = draw(st.integers(1, 60)) if containers is None else sum(containers)
    shuffle = draw(st.sampled_from(["none", "window", "epoch", "both"]))
    if shuffle == "both" and containers is None:
        shuffle = "epoch"
    options = OrderOptions(
        random_shuffle=shuffle in ("window", "both"),
        initial_fill=draw(st.sampled_from([1, 2, 5, 1024])),
        seed=draw(st.integers(0, 2**31)),
        shuffle_after_epoch=shuffle in ("epoch", "both"),
        stick_to_shard=shuffle in ("none", "window") and draw(st.booleans()),
        pad_last_batch=True,
        checkpointing=draw(st.booleans()),
        by_container=containers is not None,
    )
    return size, options, containers


@settings(max_examples=60, deadline=None)
@examples(orders(), st.integers(0, 3), st.data())
def test_every_sample_is_given_once_whatever_ranks_go_on(
    order: tuple[int, OrderOptions, list[int] | None], epoch: int, data: st.DataObject
) -> None:
    """Some ranks begin an epoch; then others go on, several times."""
    size, options, containers = order
    if not size:
        return
    counts = None if containers is None else np.array(containers)
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


def test_the_interleaved_order_is_the_same_in_all_versions() -> None:
    """A state of one version is resumed by another. Shards of 2, 2 and 3 samples."""
    began = OrderOptions(num_shards=3, pad_last_batch=True)
    assert interleaved(7, began, None, 0, 0).tolist() == [0, 2, 4, 1, 3, 5, 6]
    assert interleaved(7, began, None, 1, 2).tolist() == [0, 3, 5, 1, 6]  # shards rotate
    assert interleaved(7, replace(began, stick_to_shard=True), None, 1, 5).tolist() == [5, 6]
    rest = Rest(size=7, began=began, epoch=0, given=2, world=2, batch_size=2)
    assert [rest.entries(rank, None).tolist() for rank in (0, 1)] == [[4, 3, 6, 6], [1, 5, 5, 5]]


def test_what_was_given_before_is_not_given_again() -> None:
    rest = Rest(size=20, began=OrderOptions(), epoch=1, given=9, world=1, batch_size=4)
    order = RestOrder(20, 4, OrderOptions(pad_last_batch=True), None, rest)
    order.batch(7)[:] = 0  # the caller's own
    assert order.batch(7).tolist() == [9, 10, 11, 12]
    for index in (5, 6):
        with pytest.raises(ValueError, match=r"epoch 1, of which 9 samples.*begins at batch 7"):
            order.batch(index)
    assert order.batch(4).tolist() == [16, 17, 18, 19]


# --- The other readers ---------------------------------------------------------------------------

COUNTS = 7, 5, 9, 1, 4


def webdataset(directory: Path) -> Callable[..., Any]:
    tars, indexes = write_numbered_tars(directory, COUNTS)
    return partial(
        readers.webdataset, paths=tars, ext=["n"], index_paths=indexes, dtypes=types.INT64
    )


def tfrecord(directory: Path) -> Callable[..., Any]:
    files, indexes = write_numbered_tfrecords(directory, COUNTS)
    features = {"n": dali_tfrecord.FixedLenFeature([1], dali_tfrecord.int64, 0)}
    read = partial(readers.tfrecord, path=files, index_path=indexes, features=features)
    return lambda **arguments: read(**arguments)["n"]


def mxnet(directory: Path) -> Callable[..., Any]:
    files, indexes = write_numbered_recordios(directory, COUNTS)
    read = partial(readers.mxnet, path=files, index_path=indexes)
    return lambda **arguments: read(**arguments)[1]


def numpy(directory: Path) -> Callable[..., Any]:
    for number in range(sum(COUNTS)):
        np.save(directory / f"{number:02}.npy", np.array([number]))
    return partial(readers.numpy, file_root=str(directory))


def records(directory: Path) -> Callable[..., Any]:
    (directory / "all").write_bytes(np.arange(sum(COUNTS), dtype=np.uint8).tobytes())
    offsets = list(range(sum(COUNTS)))
    read = partial(readers.records, files=[str(directory / "all")], offsets=offsets, sizes=1)
    return lambda **arguments: read(**arguments)[0]


@pytest.mark.parametrize(
    ("make", "order"),
    [
        (webdataset, WINDOW),
        (webdataset, WINDOW | EPOCH),
        (tfrecord, WINDOW | EPOCH),
        (mxnet, EPOCH),
        (numpy, WINDOW),
        (records, EPOCH),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_other_readers_go_on(
    tmp_path: Path, make: Callable[[Path], Callable[..., Any]], order: dict[str, Any]
) -> None:
    """26 samples: two ranks give 16 of the second epoch, three the others."""
    read = make(tmp_path)

    def pipelines(world: int, batch_size: int, resume: State | None = None) -> list[Pipeline]:
        made = [Pipeline(batch_size, num_threads=1, device_id=None) for _ in range(world)]
        for rank, each in enumerate(made):
            shard = {"shard_id": rank, "num_shards": world, "pad_last_batch": True, "name": "R"}
            with each:
                each.set_outputs(read(**shard, **order, resume=resume))
        return made

    began = pipelines(2, 4)
    seen = Counter(chain(*[chain(*take(each, 4 + 2)[4:]) for each in began]))
    others = pipelines(3, 2, saved(began))
    for each, share in zip(others, (4, 3, 3), strict=True):
        seen.update(valid(take(each, 2), share))
    assert seen == Counter(range(26))
    following = [take(each, 5) for each in others]
    assert following == [take(each, 5 + 10)[10:] for each in pipelines(3, 2)]


# --- DALI's iterators ----------------------------------------------------------------------------

FILL, PARTIAL, DROP = LastBatchPolicy.FILL, LastBatchPolicy.PARTIAL, LastBatchPolicy.DROP
Epoch = list[list[list[int]]]  # batches, and in each the samples of the iterator's pipelines


def iterator(made: Pipeline | list[Pipeline], policy: LastBatchPolicy, **options: Any) -> Any:
    more = {"reader_name": "R", "auto_reset": True, "last_batch_policy": policy} | options
    return DALIGenericIterator(made, ["label"], **more)


def values(batch: list[dict[str, Any]]) -> list[list[int]]:
    return [each["label"].ravel().tolist() for each in batch]


def epochs(it: Any, number: int) -> list[Epoch]:
    return [[values(batch) for batch in it] for _ in range(number)]


def real_iterations(
    world: int, batch_size: int, policy: LastBatchPolicy, **order: Any
) -> list[list[Epoch]]:
    """Of every rank the epochs of an iterator over the reader of DALI."""
    made = ranks(world, batch_size, file=fn.readers.file, dont_use_mmap=True, **order)
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
def test_an_iterator_goes_on_with_the_same_ranks(
    policy: LastBatchPolicy, order: str, prepare: bool
) -> None:
    """At every batch of its second epoch; before it, too, when it has prepared its first batch."""
    for rank, real in enumerate(real_iterations(2, 4, policy, **ORDERS[order])):
        for cut in range(len(real[1]) + 1):
            made = pipeline(rank, 2, 4, **ORDERS[order])
            first = iterator(made, policy, prepare_first_batch=prepare)
            assert (readers.state(made, "R")["epoch"], readers.state(made, "R")["given"]) == (0, 0)
            assert epochs(first, 1) == real[:1]
            assert [values(batch) for batch in islice(first, cut)] == real[1][:cut]
            made = pipeline(rank, 2, 4, saved([made]), **ORDERS[order])
            again = iterator(made, policy, prepare_first_batch=prepare)
            expected = [real[1][cut:], *real[2:]] if cut < len(real[1]) else real[2:]
            assert epochs(again, len(expected)) == expected


@pytest.mark.parametrize("order", ["window", "epoch"])
@pytest.mark.parametrize("policy", [FILL, PARTIAL, DROP])
@pytest.mark.parametrize(("world", "batch_size"), [(3, 4), (5, 3), (1, 8)])
def test_an_iterator_goes_on_with_other_ranks(
    world: int, batch_size: int, policy: LastBatchPolicy, order: str
) -> None:
    """13 samples of the second epoch are given by others; then epochs are whole."""
    made, left = ranks(2, 4, **ORDERS[order]), Counter(range(SIZE))
    for each in made:
        left.subtract(chain(*take(each, 5 + 3)[5:]))
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


def test_an_iterator_of_several_pipelines_goes_on() -> None:
    made = ranks(2, 4)
    for each in made:
        take(each, 3)
    seen = epochs(iterator(ranks(3, 2, saved(made)), PARTIAL), 2)
    assert [[len(each) for each in batch] for batch in seen[0]] == [[2, 2, 2], [2, 2, 2], [1, 0, 0]]
    assert sorted(chain(*chain(*seen[0]))) == [*range(12, 18), *range(30, 37)]
    whole = real_iterations(3, 2, PARTIAL)
    together = zip(*[each[1] for each in whole], strict=True)
    assert seen[1] == [[labels for (labels,) in batches] for batches in together]


@pytest.mark.parametrize("world", [2, 3])
def test_every_epoch_may_have_an_iterator_of_its_own(world: int) -> None:
    began = ranks(2, 4)
    for each in began:
        take(each, 3)
    made = pipeline(0, world, 4, state := saved(began))
    expected = epochs(iterator(pipeline(0, world, 4, state), PARTIAL), 3)
    options = {"auto_reset": False, "prepare_first_batch": False}
    seen = [epochs(iterator(made, PARTIAL, **options), 1) for _ in range(3)]
    assert [epoch for (epoch,) in seen] == expected


def test_the_iteration_of_a_rest_may_be_begun_twice() -> None:
    """DALI goes on in the epoch, and logs that it cannot be reset."""
    state = begun()
    expected = epochs(iterator(pipeline(0, 3, 4, state), PARTIAL), 2)
    assert [len(labels) for (labels,) in expected[0]] == [4, 3]
    it = iterator(pipeline(0, 3, 4, state), PARTIAL)
    before = [values(batch) for batch in islice(it, 1)]
    seen = epochs(it, 2)
    assert [before + seen[0], seen[1]] == expected


def test_every_epoch_may_have_an_iterator_that_drops() -> None:
    state = begun()
    expected = epochs(iterator(pipeline(0, 3, 5, state), DROP), 3)
    assert list(map(len, expected)) == [1, 2, 2]
    made, options = pipeline(0, 3, 5, state), {"auto_reset": False, "prepare_first_batch": False}
    seen = [epochs(iterator(made, DROP, **options), 1)[0] for _ in range(3)]
    assert seen == expected


def test_what_is_left_may_be_dropped_as_a_whole() -> None:
    """36 samples, three ranks, batches of 12: 4 samples are left for each."""
    began = ranks(2, 4, size=36)
    for each in began:
        take(each, 3)
    made = pipeline(1, 3, 12, saved(began), size=36)
    assert epochs(iterator(made, DROP), 2) == [[[[*range(24, 36)]]], [[[*range(12)]]]]


def test_an_iterator_of_jax_goes_on() -> None:
    made = ranks(2, 4)
    for each in made:
        take(each, 3)
    (going_on,) = ranks(1, 5, saved(made))
    it = JaxIterator(going_on, ["label"], reader_name="R", auto_reset=True)
    assert readers.state(going_on, "R") == saved(made)
    seen = [np.asarray(batch["label"]).ravel().tolist() for batch in it]
    assert [len(batch) for batch in seen] == [5, 5, 5]
    assert sorted(list(chain(*seen))[:13]) == [*range(12, 18), *range(30, 37)]
    assert len(list(it)) == 8


def test_a_batch_that_an_iterator_keeps_was_not_delivered() -> None:
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
def test_a_checkpoint_of_a_rest_restores_it(policy: LastBatchPolicy, cut: int) -> None:
    """Two batches, or one that is not dropped. Also at their end, before or after StopIteration."""
    order, options = WINDOW | {"size": 36}, {"enable_checkpointing": True}
    began = ranks(1, 23, **order)
    take(began[0], 1)
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


# --- What is refused -----------------------------------------------------------------------------


def begun(batches: int = 2, world: int = 2, **options: Any) -> State:
    made = ranks(world, 4, **options)
    for each in made:
        take(each, batches)
    return saved(made)


@pytest.mark.parametrize(
    ("order", "change", "words"),
    [
        ({}, {"size": 38}, "made with 37 samples, and here it is 38 samples: take the data set"),
        ({}, {"labels": [0] * SIZE}, "names, labels and index have the CRC-32 .*take the data set"),
        ({}, WINDOW, "random_shuffle=False, and .* random_shuffle=True: give .* same arguments"),
        ({}, {"stick_to_shard": True}, "stick_to_shard=False, and here it is stick_to_shard=True"),
        (WINDOW, {}, "random_shuffle=True, .*and here it is random_shuffle=False"),
        (
            WINDOW,
            WINDOW | {"seed": 6},
            "seed=5, and here it is seed=6: give the reader the same seed",
        ),
        (WINDOW, WINDOW | {"initial_fill": 8}, "initial_fill=7, and here it is initial_fill=8"),
        (ORDERS["epoch"], {}, "shuffle_after_epoch=True, and here it is shuffle_after_epoch=False"),
        (
            ORDERS["epoch"],
            ORDERS["epoch"] | {"shuffle_after_epoch_seed": 3},
            "shuffle_after_epoch_seed=524287, and here it is shuffle_after_epoch_seed=3",
        ),
        (
            ORDERS["epoch"],
            ORDERS["checkpointing"],
            "enable_checkpointing=False, .*=True: make the pipeline with the same enable",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("world", [2, 3])
def test_another_data_set_or_order_is_refused(
    order: dict[str, Any], change: dict[str, Any], words: str, world: int
) -> None:
    state = begun(**order)

    def file(**arguments: Any) -> Any:
        given = {name: change[name] for name in ("labels",) if name in change}
        return readers.file(**arguments | given, backend="memory", resume=state)

    rest = {name: value for name, value in change.items() if name != "labels"}
    made = pipeline(0, world, 4, file=file, **rest)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"'R'\): the state to resume from .*{words}"):
            made.run()
    with pytest.raises(ValueError, match=words):
        iterator(pipeline(0, world, 4, file=file, **rest), FILL)


@pytest.mark.parametrize(
    "same",
    [
        WINDOW | {"seed": 5 + 2**32},  # DALI takes 32 bits
        WINDOW | {"shuffle_after_epoch_seed": 9, "options": {"enable_checkpointing": True}},
        {"seed": 1, "initial_fill": 3, "options": {"seed": 7}},
        EPOCH | {"seed": 1, "initial_fill": 3, "shuffle_after_epoch_seed": 524287},
    ],
    ids=str,
)
def test_what_makes_no_difference_is_not_refused(same: dict[str, Any]) -> None:
    shuffles = {name: value for name, value in same.items() if "shuffle" in name and value is True}
    (made,) = ranks(1, 3, begun(**(WINDOW if "random_shuffle" in shuffles else shuffles)), **same)
    take(made, 1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (None, TypeError, "resume is no state of readers.state.*it is 'x'"),
        ({"version": 2}, ValueError, "version 2, and this dali_storage reads version 1"),
        ({"version": ...}, ValueError, "no version, and"),
        ({"epoch": -1}, ValueError, "epoch is -1"),
        ({"epoch": 1.0}, ValueError, "epoch is 1.0"),
        ({"epoch": True}, ValueError, "epoch is True"),
        ({"epoch": ...}, ValueError, "too much: epoch"),
        ({"given": SIZE}, ValueError, "given is 37"),
        ({"given": -1}, ValueError, "given is -1"),
        ({"samples": 0}, ValueError, "given is 16|num_shards is 2"),
        ({"num_shards": 0}, ValueError, "num_shards must be at least 1, not 0"),
        ({"num_shards": 38}, ValueError, "num_shards is 38"),
        ({"names": "7"}, ValueError, "names is '7'"),
        ({"random_shuffle": 1}, ValueError, "random_shuffle is 1"),
        ({"random_shuffle": True, "initial_fill": 0}, ValueError, "initial_fill must be"),
        ({"seed": 2**80}, ValueError, "seed must fit"),
        ({"shuffle_after_epoch": True, "stick_to_shard": True}, ValueError, "cannot both be"),
        ({"more": 1}, ValueError, "too much: more"),
    ],
    ids=str,
)
def test_what_is_no_state_is_refused(
    change: State | None, error: type[Exception], words: str
) -> None:
    state: Any = "x"
    if change is not None:
        state = {k: v for k, v in (begun() | change).items() if v is not ...}
    with pytest.raises(error, match=rf"'R'\): .*({words})"):
        take(pipeline(0, 3, 4, state), 1)


def test_padding_is_needed() -> None:
    with pytest.raises(ValueError, match=r"'R'\): a state needs pad_last_batch=True"):
        readers.state(pipeline(0, 1, 4, pad_last_batch=False), "R")
    made = pipeline(0, 1, 4, begun(), pad_last_batch=False)
    with pytest.raises(ValueError, match=r"'R'\): resume needs pad_last_batch=True"):
        made.run()


def test_a_seed_that_ranks_may_not_share_is_refused() -> None:
    """Usually, pipelines of different ranks are given different seeds."""
    for seed in (None, 4):
        made = pipeline(0, 2, 4, random_shuffle=True, options={"seed": seed})
        with pytest.raises(ValueError, match=r"'R'\): its seed comes from the pipeline.*seed="):
            readers.state(made, "R")
    for order in ({"seed": 3}, {"options": {"enable_checkpointing": True}}):
        readers.state(pipeline(0, 2, 4, random_shuffle=True, **order), "R")
    readers.state(pipeline(0, 2, 4, options={"seed": 4}), "R")
    alone = readers.state(pipeline(0, 1, 4, random_shuffle=True, options={"seed": 4}), "R")
    for seed, refused in ((4, False), (5, True)):
        made = pipeline(0, 2, 4, alone, random_shuffle=True, options={"seed": seed})
        if refused:
            with pytest.raises(ValueError, match=rf"seed={alone['seed']}, and here it is seed="):
                made.run()
        else:
            made.run()


def test_the_seed_of_one_rank_that_began_is_that_of_all_that_go_on() -> None:
    arguments: dict[str, Any] = {"random_shuffle": True, "options": {"seed": 4}}
    alone = pipeline(0, 1, 2, **arguments)
    states, given = [readers.state(alone, "R")], list[int]()
    for world in (1, 2, 3):
        made = [pipeline(rank, world, 2, states[-1], **arguments) for rank in range(world)]
        given += chain.from_iterable(chain.from_iterable(take(each, 1)) for each in made)
        states.append(readers.state(made[0], "R"))
    assert len(set(given)) == len(given) == 2 * (1 + 2 + 3)
    assert len({state["seed"] for state in states}) == 1


def test_other_ranks_do_not_go_on_with_seeds_that_they_do_not_know() -> None:
    """A Loader has such states: of its own rank they are right."""
    arguments: dict[str, Any] = {"random_shuffle": True, "options": {"seed": 4}}
    made = pipeline(1, 2, 4, **arguments)
    take(made, 2)
    state = source(made, "R").state(made._batches_to_consume)
    assert take(pipeline(1, 2, 4, state, **arguments), 5) == take(made, 5)
    for world, batch_size in ((3, 4), (2, 5)):
        with pytest.raises(ValueError, match=r"'R'\): .*go on with 2 shards and .*seed="):
            take(pipeline(1, world, batch_size, state, **arguments), 1)


def test_a_checkpoint_and_a_state_exclude_each_other() -> None:
    checkpointing = {"enable_checkpointing": True}
    made = pipeline(0, 1, 4, options=checkpointing)
    take(made, 2)
    both = checkpointing | {"checkpoint": made.checkpoint()}
    with pytest.raises(ValueError, match=r"'R'.*two places: .*checkpoint=, or .*resume="):
        pipeline(0, 1, 4, saved([made]), options=both).build()


def test_a_reader_that_has_begun_is_not_resumed() -> None:
    state, made = begun(), pipeline(0, 2, 4)
    take(made, 1)
    with pytest.raises(RuntimeError, match=r"'R'\) has begun to read"):
        source(made, "R").resume(state)


def test_an_iterator_needs_the_name_of_the_reader() -> None:
    state = begun()
    for options in ({"size": SIZE}, {"size": 18, "last_batch_padded": True}):
        with pytest.warns(Warning, match="reader_name"), pytest.raises(ValueError, match="='R'"):
            iterator(pipeline(0, 3, 4, state), PARTIAL, reader_name=None, **options)
    endless = iterator(pipeline(0, 3, 4, state), FILL, reader_name=None)
    assert len(list(islice(endless, 20))) == 20


def test_pipelines_of_an_iterator_must_be_at_one_place() -> None:
    states = begun(), begun(1), None
    for one, other in ((0, 1), (0, 2), (2, 0)):
        made = [pipeline(rank, 2, 4, states[which]) for rank, which in enumerate((one, other))]
        with pytest.raises(ValueError, match="resumed from one state"):
            iterator(made, FILL)
    real = pipeline(1, 2, 4, file=fn.readers.file)
    for mixed in ([pipeline(0, 2, 4, states[0]), real], [real, pipeline(0, 2, 4, states[0])]):
        with pytest.raises(ValueError, match="resumed from one state"):
            iterator(mixed, FILL)
