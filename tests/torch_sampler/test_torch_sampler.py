"""The Sampler for torch's DataLoader. The oracle is the stream, whose tests are in tests/order."""

import json
import subprocess
import sys
from itertools import chain, islice

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from dali_storage import readers
from dali_storage.order.sampling.draws import Draws
from dali_storage.order.sampling.mixture import Mixture
from dali_storage.order.sampling.own import OwnOrder
from dali_storage.order.sampling.sources import Drawn, Groups, Joined, Mixed, by_label
from dali_storage.order.sampling.stream import MixedStream
from dali_storage.torch_sampler import DataSet, Sampler
from tests.kit.parity import build

pytestmark = pytest.mark.usefixtures("pipelines_end")

LABELS = np.array([2, 0, 0, 1, 0, 0, 0, 2, 0, 0])
NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 15]


def by_hand(sources, weights, names, **settings):
    settings = {"seed": 0, "epoch_size": None} | settings
    return MixedStream(names, sources, np.zeros_like, weights, **settings)


def plain(start, size, listed=False):
    return Groups(np.array([start]), np.array([size]), listed=listed)


def classes(start, weights):
    return Mixed(Mixture(weights), by_label(LABELS, start)[1])


ONE = [(0, {"samples": 1})]
STREAMS = {
    "plain": ((30,), {"seed": 4}, lambda: by_hand(plain(0, 30), ONE, ["samples"], seed=4)),
    "listed": ((30,), {"shuffle": False}, lambda: by_hand(plain(0, 30, True), ONE, ["samples"])),
    "balanced": (
        (DataSet(10, LABELS, "balanced"),),
        {"epoch_size": "largest"},
        lambda: by_hand(
            by_label(LABELS)[1], [(0, {0: 1, 1: 1, 2: 1})], [0, 1, 2], epoch_size="largest"
        ),
    ),
    "numbers": (
        (DataSet(10, weights=NUMBERS),),
        {"epoch_size": 25},
        lambda: by_hand(Drawn(0, Draws(NUMBERS, 10, 25)), ONE, ["samples"], epoch_size=25),
    ),
    "mixture": (
        ({"a": 40, "b": DataSet(10, LABELS, {0: 0, 1: 1, 2: 3}), "c": DataSet(10, None, NUMBERS)},),
        {"weights": {"a": 0.5, "b": 0.3, "c": 0.2}, "seed": 9},
        lambda: by_hand(
            Joined([plain(0, 40), classes(40, [0, 1, 3]), Drawn(50, Draws(NUMBERS, 10, 10))]),
            [(0, {"a": 5, "b": 3, "c": 2})],
            ["a", "b", "c"],
            seed=9,
        ),
    ),
    "sizes": (
        ({"a": 12, "b": 24},),
        {},
        lambda: by_hand(Joined([plain(0, 12), plain(12, 24)]), [(0, {"a": 1, "b": 2})], ["a", "b"]),
    ),
    "schedule": (
        ({"a": 12, "b": 24},),
        {"schedule": [(0, {"a": 1, "b": 0}), (20, {"a": 1, "b": 1})]},
        lambda: by_hand(
            Joined([plain(0, 12), plain(12, 24)]),
            [(0, {"a": 1, "b": 0}), (20, {"a": 1, "b": 1})],
            ["a", "b"],
        ),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_the_indices_are_those_of_the_stream(name):
    samples, options, make = STREAMS[name]
    stream = make()
    sampler = Sampler(*samples, batch_size=4, **options)
    assert len(sampler) == stream.epoch_size
    found = [index for _ in range(4) for index in sampler]
    assert found == stream.entries(np.arange(4 * stream.epoch_size)).tolist()
    saved = sampler.state_dict()
    assert (saved["stream"], saved["epoch"], saved["given"]) == (stream.describe(0), 4, 0)


@examples(
    st.sampled_from(sorted(STREAMS)),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 4)), min_size=3, max_size=6
    ),
)
def test_other_ranks_and_batch_sizes_go_on_from_a_state(name, chain):
    samples, options, make = STREAMS[name]
    stream, state = make(), None
    for world, batch_size, batches in chain:
        settings = options | {"batch_size": batch_size, "world": world}
        ranks = [Sampler(*samples, **settings, rank=rank) for rank in range(world)]
        for each in ranks if state else ():
            each.load_state_dict(state)
        epoch, given = (state["epoch"], state["given"]) if state else (0, 0)
        left = stream.epoch_size - given
        assert sum(map(len, ranks)) == left
        start, count = epoch * stream.epoch_size + given, min(left, batches * world * batch_size)
        found = []
        for each in ranks:
            taken = iter(each)
            found += islice(taken, batches * batch_size)
        expected = stream.entries(np.arange(start, start + count)) if count else np.empty(0)
        assert sorted(found) == sorted(expected.tolist())
        states = [json.loads(json.dumps(each.state_dict())) for each in ranks]
        assert states == [states[0]] * world
        state = states[0]
        assert (state["epoch"], state["given"]) == divmod(start + count, stream.epoch_size)


def stream_of_ten(epoch):
    return by_hand(plain(0, 10), ONE, ["samples"]).entries(np.arange(10) + 10 * epoch).tolist()


def test_an_epoch_is_chosen_left_and_resumed():
    sampler = Sampler(10, batch_size=2, rank=0, world=1)
    assert [*islice(sampler, 5)] == stream_of_ten(0)[:5]
    assert [*sampler] == stream_of_ten(0)  # it was left early
    assert [*islice(sampler, 3)] == stream_of_ten(1)[:3]
    sampler.set_epoch(7)
    assert [*sampler] == stream_of_ten(7)
    sampler.load_state_dict(sampler.state_dict() | {"epoch": 3, "given": 4})
    sampler.set_epoch(3)  # of torch's loops: no other epoch
    assert (len(sampler), [*sampler]) == (6, stream_of_ten(3)[4:])
    assert [*sampler] == stream_of_ten(4)


@pytest.mark.parametrize(
    ("last_batch", "lengths"),
    [("partial", [2, 2, 3]), ("drop", [0, 0, 0]), ("pad", [4, 4, 4])],
)
def test_a_last_batch_is_shared_dropped_or_padded(last_batch, lengths):
    """19 samples: 12 in a batch of all ranks, and 7."""
    whole = by_hand(plain(0, 19), ONE, ["samples"]).entries(np.arange(19)).tolist()
    for rank, more in enumerate(lengths):
        sampler = Sampler(19, batch_size=4, rank=rank, world=3, last_batch=last_batch)
        found = [*sampler]
        assert len(found) == 4 + more
        share = whole[12:][7 * rank // 3 : 7 * (rank + 1) // 3][:more]
        assert found[4:] == (share + share[-1:] * 4)[:more]
        assert {*found[:4]} < {*whole[:12]}
        assert sampler.state_dict()["epoch"] == 1
        assert len(sampler) == 4 + more


@pytest.fixture
def files(tmp_path):
    """20 files."""
    paths = [tmp_path / f"{number:02}.bin" for number in range(20)]
    for path in paths:
        path.write_bytes(b"x")
    return [str(path) for path in paths]


def of_readers(files):
    """A reader of DALI's pipelines, and the samples of the same Sampler."""
    labels = {"labels": LABELS.tolist()}
    weights = {"weights": {"a": 1, "b": 0.4}, "seed": 3}
    sources = {"a": {"files": files[:10]}, "b": {"files": files[10:]} | labels}
    sources["b"]["weights"] = {0: 1, 1: 2, 2: 1}
    classes = DataSet(10, LABELS, sources["b"]["weights"])
    balanced = {"files": files[:10], "weights": "balanced"} | labels
    drawn = {"files": files[:10], "weights": NUMBERS}
    return {
        "mixture": (
            (readers.mix, {"sources": sources, "labels": "own"} | weights),
            {"a": 10, "b": classes},
            weights,
        ),
        "classes": ((readers.file, balanced), DataSet(10, LABELS, "balanced"), {}),
        "samples": ((readers.file, drawn), DataSet(10, weights=NUMBERS), {"epoch_size": 13}),
        "epochs": ((readers.file, {"files": files}), 20, {"epoch_size": 7, "seed": 1}),
    }


@pytest.mark.parametrize("name", ["mixture", "classes", "samples", "epochs"])
def test_the_indices_are_those_of_the_reader(name, files):
    (read, given), samples, options = of_readers(files)[name]
    shard = {"shard_id": 1, "num_shards": 2, "pad_last_batch": True, "name": "R"}
    given = given | {name: options[name] for name in options if name != "weights"} | shard
    pipeline = build(read, 2, {}, return_index=True, **given)
    sampler = Sampler(samples, batch_size=2, rank=1, world=2, last_batch="pad", **options)

    def read_indices():
        return [np.array(pipeline.run()[-1]).ravel().tolist() for _ in range(len(sampler) // 2)]

    for _ in range(2):
        assert [*chain.from_iterable(read_indices())] == [*sampler]
    half = [each for _ in range(2) for each in np.array(pipeline.run()[-1]).ravel().tolist()]
    assert half == [*islice(sampler, 4)]
    saved = readers.state(pipeline, "R")
    assert sampler.state_dict().items() <= saved.items()
    other = Sampler(samples, batch_size=3, **options)
    other.load_state_dict(json.loads(json.dumps(saved)))
    assert other.state_dict() == sampler.state_dict()


SET = ConcatDataset([TensorDataset(torch.arange(12)), TensorDataset(torch.arange(12, 36))])
SIZES = {"a": 12, "b": 24}


def numbers(loader, count=99):
    return [batch.tolist() for (batch,) in islice(loader, count)]


def test_a_data_loader_takes_it():
    expected = STREAMS["sizes"][2]().entries(np.arange(72)).reshape(2, -1).tolist()
    chunks = [[epoch[at : at + 5] for at in range(0, 36, 5)] for epoch in expected]
    sampler = Sampler(SIZES, batch_size=5)
    loader = DataLoader(SET, sampler=sampler, batch_size=5)
    assert [numbers(loader), numbers(loader)] == chunks
    of_batches = DataLoader(SET, batch_sampler=BatchSampler(Sampler(SIZES, batch_size=5), 5, False))
    assert [numbers(of_batches), numbers(of_batches)] == chunks
    sampler.set_epoch(0)
    assert numbers(loader, 3) == chunks[0][:3]
    for state in (sampler.state_dict(), sampler.state_dict(batches=2)):
        resumed = Sampler(SIZES, batch_size=5)
        resumed.load_state_dict(state)
        again = DataLoader(SET, sampler=resumed, batch_size=5)
        assert len(again) == len(chunks[0]) - state["given"] // 5
        assert numbers(again) == chunks[0][state["given"] // 5 :]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # by torchdata
def test_a_stateful_data_loader_saves_it():
    def loader():
        return StatefulDataLoader(SET, sampler=Sampler(SIZES, batch_size=5), batch_size=5)

    whole = loader()
    expected = [numbers(whole), numbers(whole)]
    begun = loader()
    numbers(begun)
    assert numbers(begun, 3) == expected[1][:3]
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    assert numbers(resumed) == expected[1][3:]


def test_an_own_order_is_refused_if_it_is_of_one_rank():
    with pytest.raises(ValueError, match="one of 2 ranks"):
        OwnOrder(Sampler(10, batch_size=2, rank=0, world=2), 10)
    assert OwnOrder(Sampler(10, batch_size=2, rank=0, world=1), 10).epoch_size == 10


def test_it_needs_no_dali():
    """A stand-in for torch, which is imported for seconds."""
    script = (
        "import sys, types\n"
        "from typing import Generic, TypeVar\n"
        "data = types.ModuleType('torch.utils.data')\n"
        "class Base(Generic[TypeVar('T')]): pass\n"
        "data.Sampler = Base\n"
        "utils = types.ModuleType('torch.utils'); utils.data = data\n"
        "sys.modules |= {'nvidia': None, 'torch': types.ModuleType('torch')}\n"
        "sys.modules |= {'torch.utils': utils, 'torch.utils.data': data}\n"
        "from dali_storage.torch_sampler import Sampler\n"
        "print(sorted(Sampler({'a': 5, 'b': 4}, batch_size=2, rank=0, world=1)))\n"
        "assert not [name for name in sys.modules if name.startswith('dali_storage.dali')]"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{[*range(9)]}\n", "")


def test_the_package_does_not_import_torch():
    script = "import sys, dali_storage; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


REFUSED = {
    "one of two": (lambda: Sampler(9, batch_size=2, rank=0), "rank and world"),
    "rank": (lambda: Sampler(9, batch_size=2, rank=2, world=2), "rank must be"),
    "batch size": (lambda: Sampler(9, batch_size=0), "batch_size must be"),
    "no samples": (lambda: Sampler(0, batch_size=2), "size must be an integer from 1"),
    "no number": (lambda: Sampler({"a": "9"}, batch_size=2), "size must be an integer from 1"),
    "last batch": (lambda: Sampler(9, batch_size=2, last_batch="fill"), "not 'fill'"),
    "all dropped": (lambda: Sampler(9, batch_size=10, last_batch="drop"), "leaves none of 9"),
    "too many ranks": (lambda: Sampler(9, batch_size=1, rank=0, world=10), "at least num_shards"),
    "weights": (lambda: Sampler(9, batch_size=2, weights=[1] * 9), "give the DataSet weights"),
    "two kinds": (
        lambda: Sampler({"a": 9}, batch_size=2, weights={"a": 1}, schedule=[(0, {"a": 1})]),
        "cannot both be given",
    ),
    "no labels": (lambda: Sampler(DataSet(9, None, "sqrt"), batch_size=2), "need labels"),
    "other labels": (lambda: Sampler(DataSet(9, LABELS, "sqrt"), batch_size=2), "9 integers"),
    "of a source": (
        lambda: Sampler({"a": DataSet(9, weights=[1])}, batch_size=2),
        "source 'a': weights: 1 numbers for 9 samples",
    ),
    "listed": (lambda: Sampler(DataSet(9, None, [1] * 9), batch_size=2, shuffle=False), "shuffle"),
    "epoch": (lambda: Sampler(9, batch_size=2).set_epoch(-1), "epoch must be an integer"),
    "done": (lambda: Sampler(9, batch_size=2).state_dict(batches=6), "batches must be an integer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2, but this sampler has 1"),
        ({"samples": 8}, "samples 8, but this sampler has 9"),
        ({"stream": "DALI's"}, "stream \"DALI's\", but this sampler has 'seed 0"),
        ({"epoch": -1}, "epoch must be an integer"),
        ({"given": 9}, "given must be an integer from 0 to 8"),
        ({"given": None}, "given must be an integer"),
        ({"changes": None}, "changes"),
    ],
    ids=str,
)
def test_another_state_is_refused(change, message):
    sampler = Sampler(9, batch_size=2)
    with pytest.raises(ValueError, match=message) as error:
        sampler.load_state_dict(sampler.state_dict() | change)
    assert len(str(error.value)) < 300
    assert len([*sampler]) == 9
