"""States that do not fit a reader, and readers that cannot be resumed."""

from functools import partial
from itertools import chain

import pytest

from dali_storage import readers
from dali_storage.dali.queries import source
from dali_storage.saving import positions
from tests.kit.parity import numbers
from tests.kit.resuming import (
    EPOCH,
    ORDERS,
    OURS,
    SIZE,
    WINDOW,
    begun,
    files,
    pipeline,
    ranks,
    saved,
)

pytorch = pytest.importorskip("nvidia.dali.plugin.pytorch")
pytestmark = pytest.mark.usefixtures("pipelines_end")

SAME = partial(OURS, labels=[0] * SIZE)


EPOCH_SEED = "shuffle_after_epoch_seed"


@pytest.mark.parametrize(
    ("order", "change", "words"),
    [
        ({}, {"read": files(38)}, "made with 37 samples, .* 38 samples: resume with the same data"),
        ({}, {"read": SAME}, "names, labels, texts and index have the CRC-32 .*the same data set"),
        ({}, WINDOW, "random_shuffle=False, but .* random_shuffle=True: give .* same arguments"),
        ({}, {"stick_to_shard": True}, "stick_to_shard=False, but .* has stick_to_shard=True"),
        (WINDOW, {}, "random_shuffle=True, .*but this reader has random_shuffle=False"),
        (WINDOW, WINDOW | {"seed": 6}, "seed=5, but .* seed=6: give the reader the same seed"),
        (WINDOW, WINDOW | {"initial_fill": 8}, "initial_fill=7, but .* has initial_fill=8"),
        (EPOCH, {}, "shuffle_after_epoch=True, but .* has shuffle_after_epoch=False"),
        (EPOCH, EPOCH | {EPOCH_SEED: 3}, f"{EPOCH_SEED}=524287, but .* has {EPOCH_SEED}=3"),
        (EPOCH, ORDERS["checkpointing"], "enable_checkpointing=False, .*=True: make the pipeline"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_another_data_set_or_order_is_refused(order, change, words):
    """Also of a checkpoint: both are compared in one way."""
    state = begun(**order)
    made = pipeline(0, 3, 4, state, **change)
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"'R'\): the state to resume from .*{words}"):
            made.run()
    with pytest.raises(ValueError, match=words):
        iterator = pytorch.DALIGenericIterator
        iterator(pipeline(0, 2, 4, state, **change), ["label"], reader_name="R")


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
def test_options_that_make_no_difference_are_not_refused(same):
    shuffles = {name: value for name, value in same.items() if "shuffle" in name and value is True}
    (made,) = ranks(1, 3, begun(**(WINDOW if "random_shuffle" in shuffles else shuffles)), **same)
    numbers(made, 1)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (None, TypeError, "resume is not a state of readers.state.* but 'x'"),
        ({"version": 2}, ValueError, r"version 2 \(this release reads version 1\)"),
        ({"version": ...}, ValueError, "without a version"),
        ({"epoch": -1}, ValueError, "epoch is -1"),
        ({"epoch": 1.0}, ValueError, "epoch is 1.0"),
        ({"epoch": True}, ValueError, "epoch is True"),
        ({"epoch": ...}, ValueError, "unexpected keys: epoch"),
        ({"given": SIZE}, ValueError, "given is 37"),
        ({"given": -1}, ValueError, "given is -1"),
        ({"samples": 0}, ValueError, "given is 16|num_shards is 2"),
        ({"num_shards": 38}, ValueError, "num_shards is 38"),
        ({"names": "7"}, ValueError, "names is '7'"),
        ({"random_shuffle": 1}, ValueError, "random_shuffle is 1"),
        ({"random_shuffle": True, "initial_fill": 0}, ValueError, "initial_fill must be"),
        ({"seed": 2**80}, ValueError, "seed must fit"),
        ({"more": 1}, ValueError, "unexpected keys: more"),
    ],
    ids=str,
)
def test_an_impossible_state_is_refused(change, error, words):
    state = "x"
    if change is not None:
        state = {k: v for k, v in (begun() | change).items() if v is not ...}
    with pytest.raises(error, match=rf"'R'\): .*({words})"):
        numbers(pipeline(0, 3, 4, state), 1)


def test_a_state_without_padding_is_refused():
    with pytest.raises(ValueError, match=r"'R'\): a state needs pad_last_batch=True"):
        readers.state(pipeline(0, 1, 4, pad_last_batch=False), "R")
    made = pipeline(0, 1, 4, begun(), pad_last_batch=False)
    with pytest.raises(ValueError, match=r"'R'\): resume needs pad_last_batch=True"):
        made.run()


def test_a_seed_that_ranks_may_not_share_is_refused():
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
            with pytest.raises(ValueError, match=f"seed={alone['seed']}, but .* has seed="):
                made.run()
        else:
            made.run()


def test_the_seed_of_one_rank_that_began_is_that_of_all_that_go_on():
    arguments = {"random_shuffle": True, "options": {"seed": 4}}
    alone = pipeline(0, 1, 2, **arguments)
    states, given = [readers.state(alone, "R")], list[int]()
    for world in (1, 2, 3):
        made = [pipeline(rank, world, 2, states[-1], **arguments) for rank in range(world)]
        given += chain.from_iterable(chain.from_iterable(numbers(each, 1)) for each in made)
        states.append(readers.state(made[0], "R"))
    assert len(set(given)) == len(given) == 2 * (1 + 2 + 3)
    assert len({state["seed"] for state in states}) == 1


def test_other_ranks_do_not_go_on_with_seeds_that_they_do_not_know():
    """A Loader has such states: of its own rank they are right."""
    arguments = {"random_shuffle": True, "options": {"seed": 4}}
    made = pipeline(1, 2, 4, **arguments)
    numbers(made, 2)
    state = positions.state(source(made, "R"), made._batches_to_consume)
    assert numbers(pipeline(1, 2, 4, state, **arguments), 5) == numbers(made, 5)
    for world, batch_size in ((3, 4), (2, 5)):
        with pytest.raises(ValueError, match=r"'R'\): .*resume with 2 shards and .*seed="):
            numbers(pipeline(1, world, batch_size, state, **arguments), 1)


def test_a_checkpoint_and_a_state_exclude_each_other():
    checkpointing = {"enable_checkpointing": True}
    made = pipeline(0, 1, 4, options=checkpointing)
    numbers(made, 2)
    both = checkpointing | {"checkpoint": made.checkpoint()}
    with pytest.raises(ValueError, match=r"'R'.*two places; .*checkpoint= .*or resume="):
        pipeline(0, 1, 4, saved([made]), options=both).build()


def test_a_reader_that_has_begun_is_not_resumed():
    state, made = begun(), pipeline(0, 2, 4)
    numbers(made, 1)
    with pytest.raises(RuntimeError, match=r"'R'\) has begun to read"):
        positions.resume(source(made, "R"), state)
