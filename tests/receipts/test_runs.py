"""Receipts of clean runs with breaks, and of runs with a planted fault; replays of runs.

The oracle is the number of the data set by hand; see tests/kit/receipts.py.
"""

import json
import random
import shutil
import struct
from functools import partial

import numpy as np
import pytest

from dali_storage import readers, receipts
from dali_storage.cli import index, replay
from tests.kit.dali import build
from tests.kit.receipts import of, sums, sums_of
from tests.kit.resuming import ORDERS
from tests.kit.shards import write_mds
from tests.kit.tiers import by_tier

pytestmark = pytest.mark.usefixtures("pipelines_end")

SIZE = 37


@pytest.fixture
def root(tmp_path):
    """A data set of 37 files, some of which have one size."""
    generator = np.random.default_rng(5)
    for number in range(SIZE):
        path = tmp_path / "set" / "abc"[number % 3] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(generator.bytes(10 + number // 4))
    return tmp_path / "set"


def names_in(root):
    return sorted(str(it.relative_to(root)) for it in root.rglob("*") if it.is_file())


def whole(root, mode="bytes", within=""):
    """The number of the data set, or of one class."""
    names = [name for name in names_in(root) if name.startswith(within)]
    below = len(within + "/") if within else 0
    return sums([(name[below:], (root / name).read_bytes()) for name in names], mode)


def pipeline(root, rank, world, batch_size=3, **arguments):
    mixed = {"labels": "own"} if "sources" in arguments else {"file_root": root}
    given = {"name": "R", "receipt": "bytes", "pad_last_batch": True, **mixed}
    given |= {"shard_id": rank, "num_shards": world}
    reader = readers.mix if "sources" in arguments else readers.file
    options = arguments.pop("options", {})
    return build(reader, batch_size, pipeline=options, **given | arguments)


def run(root, world, batches, batch_size=3, **arguments):
    """The pipelines of all ranks, after so many batches."""
    ranks = [pipeline(root, rank, world, batch_size, **arguments) for rank in range(world)]
    for _ in range(batches):
        for each in ranks:
            each.run()
    return ranks


def joined(pipelines):
    """The state of all ranks, through JSON."""
    return json.loads(json.dumps(receipts.join(*[readers.state(it, "R") for it in pipelines])))


def total(pipelines, epoch=0, source=None):
    return receipts.combine(*[readers.receipt(it, "R", epoch, source) for it in pipelines])


def rounds(left, world, batch_size=3):
    return -(-left // (world * batch_size))


@pytest.mark.parametrize("seed", range(by_tier(40, 200)))
def test_a_clean_run_with_breaks_has_the_number_of_the_data_set(seed, root):
    draw, state, left = random.Random(seed), None, SIZE
    order = draw.choice([*ORDERS.values(), {"epoch_size": SIZE, "seed": 4}])
    mode, epoch = draw.choice(["samples", "bytes"]), draw.randrange(2)
    worlds = draw.choices(range(1, 6), k=draw.randint(1, 4))
    for number, world in enumerate(worlds):
        size = draw.randint(1, 5)
        before = epoch * rounds(SIZE, world, size) if state is None else 0
        batches = rounds(left, world, size)
        batches = batches if number == len(worlds) - 1 else draw.randrange(batches)
        ranks = run(root, world, before + batches, size, resume=state, receipt=mode, **order)
        left -= batches * world * size
        state = joined(ranks) if left > 0 else state
    found = total(ranks, epoch)
    assert of(found) == whole(root, mode)
    assert (found["epoch"], found["replaced"]) == (epoch, 0)


def test_the_sources_of_a_mixture_have_receipts_of_their_passes(root):
    sources, state = {name: {"file_root": root, "dir_filters": name} for name in "ab"}, None
    for world, batches in ((2, 3), (3, 4), (1, 30)):
        weights = {"a": 3, "b": 1}
        ranks = run(root, world, batches, sources=sources, weights=weights, resume=state)
        state = joined(ranks)
    for name, (given, passes) in readers.progress(ranks[0], "R").items():
        assert of(total(ranks, passes - 1, name)) == whole(root, within=name)
        assert total(ranks, passes, name)["count"] == given % (SIZE // 3 + (name == "a"))
    with pytest.raises(ValueError, match=r"epoch must be \d+ or \d+, not 0"):
        total(ranks, 0, "a")


@pytest.mark.parametrize("mode", ["samples", "bytes"])
def test_shards_have_their_receipt_beside_samples_of_two_files(root, mode):
    rows = [{"x": b"x" * number, "y": b"y"} for number in range(1, 9)]
    shards = write_mds(root.parent / "mds", dict.fromkeys("xy", ("str", None)), {"0.mds": rows})
    pairs = {"reader": "columns", "files": [[root / it for it in names_in(root)]] * 2}
    sources = {"a": {"reader": "mds", "path": shards, "columns": ["x", "y"]}, "b": pairs}
    with readers.batches(readers.mix, sources, batch_size=5, receipt=mode) as batches:
        for _ in batches:
            pass
        found = batches.receipt(0, "a")
    content = (shards / "0.mds").read_bytes()
    records = [struct.pack("<2I", len(it["x"]), 1) + it["x"] + it["y"] for it in rows]
    assert of(found) == sums_of([[("0.mds", content.index(it), it)] for it in records], mode)


# --- faults ---


def clean(root, world=2, batches=None, **arguments):
    return total(run(root, world, rounds(SIZE, world) if batches is None else batches, **arguments))


def change(name, write):
    """A file changes between the number of the data set and the run."""
    return lambda root, tmp_path: (write(root / name), clean(root))[1]


def rewrite(new, name="b/01.jpg"):
    return change(name, lambda path: path.write_bytes(new(path.read_bytes())))


def flip(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return changed


def swap(path):
    other = path.parent / "03.jpg"
    one, two = path.read_bytes(), other.read_bytes()
    assert len(one) == len(two)
    path.write_bytes(two)
    other.write_bytes(one)


def ranks_of(*different, **common):
    """Ranks have different arguments by mistake. They are told apart, as if they were right."""

    def fault(root, tmp_path):
        named = []
        for rank, own in enumerate(different):
            one = pipeline(root, **{"rank": rank, "world": 2} | common | own)
            for _ in range(rounds(SIZE, 2)):
                one.run()
            named.append(readers.receipt(one, "R", 0) | {"shard": [rank, 2]})
        return receipts.combine(*named)

    return fault


def listed(edit):
    """The list of files is not that of the data set."""

    def fault(root, tmp_path):
        names = names_in(root)
        edit(names)
        return clean(root, files=names)

    return fault


def resumed(worlds, edit=lambda state: None, last=None):
    """A run with breaks after two batches; the state is changed, or the tail is lost."""

    def fault(root, tmp_path):
        state, left = None, SIZE
        for world in worlds[:-1]:
            state, left = joined(run(root, world, 2, resume=state)), left - 6 * world
            edit(state)
        batches = rounds(left, worlds[-1]) if last is None else last
        return clean(root, worlds[-1], batches, resume=state)

    return fault


def moved(by):
    return lambda state: state.update(given=state["given"] + by)


def twice(state):
    table = state["receipt"][0]
    other = receipts.combine(table | {"shard": [0, 2]}, table | {"shard": [1, 2]})
    state["receipt"] = [other]


def held(root, tmp_path):
    """The backend has the bytes of yesterday."""
    (one,) = run(root, 1, 0, backend="memory")
    readers.catalog(one, "R")
    (root / "a" / "00.jpg").write_bytes(flip((root / "a" / "00.jpg").read_bytes(), 3))
    for _ in range(13):
        one.run()
    return total([one])


def yesterday(root, tmp_path):
    """An index lacks the file of today."""
    index.main([str(root), "-o", str(tmp_path / "index")])
    (root / "c" / "today.jpg").write_bytes(b"new")
    return clean(tmp_path / "index")


def left_out(root, tmp_path):
    line = {"index": 0, "path": str(root / "a" / "00.jpg"), "reason": "bad"}
    (tmp_path / "bad.jsonl").write_text(json.dumps(line))
    return clean(root, exclude=tmp_path / "bad.jsonl")


def replaced(root, tmp_path):
    names = names_in(root)
    (root / "a" / "00.jpg").unlink()
    with pytest.warns(UserWarning, match=r"00\.jpg"):
        found = clean(root, files=names, on_error="replace")
    assert (found["count"], found["replaced"]) == (SIZE, 1)
    return found


def other_root(root, tmp_path):
    with pytest.raises(ValueError, match="different data sets cannot be combined"):
        ranks_of({}, {"dir_filters": "[ab]"})(root, tmp_path)
    return clean(root, dir_filters="[ab]")


def passes(root, tmp_path):
    return total(run(root, 1, 10, sources={"s": {"file_root": root}}, epoch_size=30), None)


FAULTS = {
    "a file is dropped": change("a/00.jpg", lambda path: path.unlink()),
    "a file is added": change("a/new.jpg", lambda path: path.write_bytes(b"new")),
    "a file is doubled": change("a/x.jpg", lambda path: shutil.copy(path.parent / "00.jpg", path)),
    "a file is renamed": change("a/00.jpg", lambda path: path.rename(path.with_suffix(".new"))),
    "a file is moved to another class": change(
        "a/00.jpg", lambda path: path.rename(path.parent.parent / "b" / "00.jpg")
    ),
    "swapped bytes": change("a/00.jpg", swap),
    "the first bit": rewrite(partial(flip, bit=0)),
    "the last bit": rewrite(partial(flip, bit=8 * 19 - 1), "a/36.jpg"),
    "a truncated file": rewrite(lambda data: data[:-1]),
    "an empty file": rewrite(lambda data: b""),
    "a longer file": rewrite(lambda data: data + b"\0"),
    "zeros": rewrite(lambda data: bytes(len(data))),
    "a list without a name": listed(lambda names: names.pop(7)),
    "a list with a name twice": listed(lambda names: names.append(names[7])),
    "a list with one name for another": listed(lambda names: names.__setitem__(3, names[4])),
    "the wrong shard": ranks_of({"rank": 0}, {"rank": 0}),
    "too many shards": ranks_of({}, {"world": 3}),
    "too few shards": ranks_of({}, {"world": 1, "rank": 0}),
    "another shuffle on a rank": ranks_of({"random_shuffle": True}, {}),
    "another seed of epochs": ranks_of(
        {"shuffle_after_epoch_seed": 1}, {"shuffle_after_epoch_seed": 2}, shuffle_after_epoch=True
    ),
    "another root on a rank": other_root,
    "an epoch left early": lambda root, tmp_path: clean(root, batches=6),
    "a resume one batch late": resumed((2, 3), moved(6)),
    "a resume one batch early": resumed((2, 3), moved(-6)),
    "a resume one sample late": resumed((2, 3), moved(1)),
    "a lost tail, 3 -> 2 -> 5 ranks": resumed((3, 2, 5), last=0),
    "a receipt twice": resumed((3, 2), twice),
    "a held file": held,
    "an index of yesterday": yesterday,
    "an excluded sample": left_out,
    "a replaced sample": replaced,
    "a pass that ends early": passes,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_the_number(fault, root, tmp_path):
    before = whole(root)
    found = FAULTS[fault](root, tmp_path)
    # What was there yesterday; of a held or indexed file, what is there today.
    assert of(found) != (
        whole(root) if fault in ("a held file", "an index of yesterday") else before
    )


# --- replays ---

MIXED = {"weights": {"a": 3, "b": 1}, "seed": 3}


@pytest.mark.parametrize("order", [*ORDERS, "mixed"])
def test_a_replay_prints_what_a_run_with_breaks_has_had(order, root, tmp_path, capsys):
    draw, state, steps = random.Random(order), None, list[list[list[int]]]()
    arguments, words = {"receipt": None, "return_index": True} | ORDERS.get(order, MIXED), [root]
    if order == "mixed":
        sources = {name: {"file_root": str(root), "dir_filters": name} for name in "ab"}
        arguments["sources"], given = sources, {"sources": sources, "labels": "own"} | MIXED
        words = [f"{key}={json.dumps(value)}" for key, value in given.items()]
        words = ["--reader", "mix", "--argument", *words]
    for world, size, batches in [(2, 3, 4), (3, 2, 8), (3, 2, 3), (1, 4, 12), (2, 2, 5)]:
        ranks = run(root, world, 0, size, resume=state, **arguments)
        for at in range(batches):
            for each in ranks if order == "mixed" and at == 2 else ():
                readers.set_weights(each, "R", {"a": 1, "b": world})
            batch = [each.run()[2] for each in ranks]
            steps.append([np.asarray(it.as_array()).ravel().tolist() for it in batch])
        state = json.loads(json.dumps(readers.state(ranks[0], "R")))
    (tmp_path / "state").write_text(json.dumps(state))
    catalog = readers.catalog(ranks[0], "R")
    names = [catalog.name(it).decode() for it in range(len(catalog))]

    def replayed(*more):
        assert replay.main([*map(str, [tmp_path / "state", *words, *more])]) == 0
        heads, *lines = map(str.split, capsys.readouterr().out.splitlines())
        assert heads == ["step", "rank", "sample", "name"]
        return [(int(step), int(rank), int(it), name) for step, rank, it, name in lines]

    for step in draw.choices(range(len(steps)), k=by_tier(10, 100)):
        want = [(step, r, it, names[it]) for r, its in enumerate(steps[step]) for it in its]
        assert replayed("--step", step) == want
        rank = draw.randrange(len(steps[step]))
        assert replayed("--step", step, "--rank", rank) == [it for it in want if it[1] == rank]
    for at, name in enumerate(names[:3]):
        last = range(len(steps) - 2 * rounds(len(names), 2, 2), len(steps))
        had = [(step, r) for step in last for r, its in enumerate(steps[step]) if at in its]
        assert replayed("--name", name) == [(step, r, at, name) for step, r in had]
        found = replayed("--name", name, "--forecast")
        assert found[0][0] >= len(steps)
        assert {it[2:] for it in found} == {(at, name)}
        assert all(it in replayed("--step", it[0], "--forecast") for it in found)
