"""Receipts of clean runs with breaks, and of runs with a planted fault; replays of runs.

The oracle is the number of the data set by hand; see tests/kit/receipts.py.
"""

import json
import random
import shutil
from functools import partial

import numpy as np
import pytest

from dali_storage import readers, receipts
from dali_storage.cli import index, replay
from tests.kit.dali import build
from tests.kit.receipts import of, sums
from tests.kit.resuming import ORDERS
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


def whole(root, mode="bytes"):
    """The number of the data set."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return sums([(str(it.relative_to(root)), it.read_bytes()) for it in files], mode)


def pipeline(root, rank, world, batch_size=3, **arguments):
    options = arguments.pop("options", {})
    arguments = {"file_root": root, "pad_last_batch": True, "receipt": "bytes"} | arguments
    if mixed := "sources" in arguments:
        del arguments["file_root"]
        arguments = {"labels": "own"} | arguments
    shard = {"name": "R", "shard_id": rank, "num_shards": world}
    reader = readers.mix if mixed else readers.file
    return build(reader, batch_size, pipeline=options, **shard | arguments)


def run(pipelines, batches):
    for each in pipelines:
        for _ in range(batches):
            each.run()


def joined(pipelines):
    """The state of all ranks, through JSON."""
    return json.loads(json.dumps(receipts.join(*[readers.state(it, "R") for it in pipelines])))


def total(pipelines, epoch=None, source=None):
    return receipts.combine(*[readers.receipt(it, "R", epoch, source) for it in pipelines])


def rounds(left, world, batch_size):
    return -(-left // (world * batch_size))


def broken_run(draw, root, worlds, epoch, **arguments):
    """Go through an epoch on these numbers of ranks, one after another; return its receipt."""
    state, left = None, SIZE
    for number, world in enumerate(worlds):
        size = draw.randint(1, 5)
        ranks = [pipeline(root, r, world, size, resume=state, **arguments) for r in range(world)]
        if state is None:
            run(ranks, epoch * rounds(SIZE, world, size))
        batches = rounds(left, world, size)
        batches = batches if number == len(worlds) - 1 else draw.randrange(batches)
        run(ranks, batches)
        left -= batches * world * size
        if left > 0:
            state = joined(ranks)
    return total(ranks, epoch)


@pytest.mark.parametrize("seed", range(by_tier(40, 200)))
def test_a_clean_run_with_breaks_has_the_number_of_the_data_set(seed, root):
    draw = random.Random(seed)
    order = draw.choice([*ORDERS.values(), {"epoch_size": SIZE, "seed": 4}])
    mode = draw.choice(["samples", "bytes"])
    worlds, epoch = draw.choices(range(1, 6), k=draw.randint(1, 4)), draw.randrange(2)
    found = broken_run(draw, root, worlds, epoch, receipt=mode, **order)
    assert of(found) == whole(root, mode)
    assert (found["epoch"], found["replaced"]) == (epoch, 0)


def test_the_sources_of_a_mixture_have_receipts_of_their_passes(root):
    sources, state = {name: {"file_root": root, "dir_filters": name} for name in "ab"}, None
    for world, batches in ((2, 3), (3, 4), (1, 30)):
        arguments = {"sources": sources, "weights": {"a": 3, "b": 1}, "resume": state}
        ranks = [pipeline(root, rank, world, **arguments) for rank in range(world)]
        run(ranks, batches)
        state = joined(ranks)
    for name, (given, passes) in readers.progress(ranks[0], "R").items():
        assert of(total(ranks, passes - 1, name)) == whole(root / name)
        assert total(ranks, passes, name)["count"] == given % (SIZE // 3 + (name == "a"))
    with pytest.raises(ValueError, match=r"epoch must be \d+ or \d+, not 0"):
        total(ranks, 0, "a")


# --- faults ---


def clean(root, world=2, batches=None, **arguments):
    ranks = [pipeline(root, rank, world, **arguments) for rank in range(world)]
    run(ranks, rounds(SIZE, world, 3) if batches is None else batches)
    return total(ranks, 0)


def change(name, write):
    """A file changes between the number of the data set and the run."""

    def fault(root, tmp_path):
        write(root / name)
        return clean(root)

    return fault


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def swap(path, other):
    one, two = path.read_bytes(), (path.parent / other).read_bytes()
    assert len(one) == len(two)
    assert one != two
    path.write_bytes(two)
    (path.parent / other).write_bytes(one)


def per_rank(*different, **common):
    """Ranks have different arguments, by mistake."""

    def fault(root, tmp_path):
        own = [{"rank": r, "world": len(different)} | it for r, it in enumerate(different)]
        ranks = [pipeline(root, **common | it) for it in own]
        run(ranks, rounds(SIZE, len(different), 3))
        # Their ranks are told apart, as if they were right.
        named = [readers.receipt(it, "R", 0) | {"shard": [at, 2]} for at, it in enumerate(ranks)]
        return receipts.combine(*named)

    return fault


def listed(edit):
    """The list of files is not that of the data set."""

    def fault(root, tmp_path):
        names = sorted(str(it.relative_to(root)) for it in root.rglob("*.jpg"))
        edit(names)
        return clean(root, files=names)

    return fault


def resumed(worlds, edit=lambda state: None, last=None):
    """A run with breaks after two batches; the state is changed, or the tail is lost."""

    def fault(root, tmp_path):
        state, left = None, SIZE
        for world in worlds:
            ranks = [pipeline(root, rank, world, resume=state) for rank in range(world)]
            if world != worlds[-1]:
                run(ranks, 2)
                state, left = joined(ranks), left - 6 * world
                edit(state)
        run(ranks, rounds(left, world, 3) if last is None else last)
        return total(ranks, 0)

    return fault


def moved(by):
    return lambda state: state.update(given=state["given"] + by)


def held(root, tmp_path):
    """The backend has the bytes of yesterday."""
    ranks = [pipeline(root, 0, 1, backend="memory")]
    readers.catalog(ranks[0], "R")
    flip(root / "a" / "00.jpg", 3)
    run(ranks, 13)
    return total(ranks, 0)


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
    names = sorted(str(it.relative_to(root)) for it in root.rglob("*.jpg"))
    (root / "a" / "00.jpg").unlink()
    with pytest.warns(UserWarning, match=r"00\.jpg"):
        found = clean(root, files=names, on_error="replace")
    assert (found["count"], found["replaced"]) == (SIZE, 1)
    return found


def other_root(root, tmp_path):
    with pytest.raises(ValueError, match="different data sets cannot be combined"):
        per_rank({}, {"dir_filters": "[ab]"})(root, tmp_path)
    return clean(root, dir_filters="[ab]")


def passes(root, tmp_path):
    ranks = [pipeline(root, 0, 1, sources={"s": {"file_root": root}}, epoch_size=30)]
    run(ranks, 10)
    return total(ranks)


def twice(state):
    table = state["receipt"][0]
    state["receipt"] = [receipts.combine(table, table | {"shard": [1, 2]})]


FAULTS = {
    "a file is dropped": change("a/00.jpg", lambda path: path.unlink()),
    "a file is added": change("a/new.jpg", lambda path: path.write_bytes(b"new")),
    "a file is doubled": change("a/x.jpg", lambda path: shutil.copy(path.parent / "00.jpg", path)),
    "a file is renamed": change("a/00.jpg", lambda path: path.rename(path.with_suffix(".new"))),
    "a file is moved to another class": change(
        "a/00.jpg", lambda path: path.rename(path.parent.parent / "b" / "00.jpg")
    ),
    "the first bit": change("a/00.jpg", partial(flip, bit=0)),
    "the last bit": change("a/36.jpg", partial(flip, bit=8 * 19 - 1)),
    "swapped bytes": change("a/00.jpg", partial(swap, other="03.jpg")),
    "a truncated file": change("b/01.jpg", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "an empty file": change("b/01.jpg", lambda path: path.write_bytes(b"")),
    "a longer file": change("b/01.jpg", lambda path: path.write_bytes(path.read_bytes() + b"\0")),
    "zeros": change("b/01.jpg", lambda path: path.write_bytes(bytes(len(path.read_bytes())))),
    "a list without a name": listed(lambda names: names.pop(7)),
    "a list with a name twice": listed(lambda names: names.append(names[7])),
    "a list with one name for another": listed(lambda names: names.__setitem__(3, names[4])),
    "the wrong shard": per_rank({"rank": 0}, {"rank": 0}),
    "too many shards": per_rank({}, {"world": 3}),
    "too few shards": per_rank({}, {"world": 1, "rank": 0}),
    "another shuffle on a rank": per_rank({"random_shuffle": True}, {}),
    "another seed of epochs": per_rank(
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
    want = whole(root) if fault in ("a held file", "an index of yesterday") else before
    assert of(found) != want


# --- replays ---

MIXED = {"weights": {"a": 3, "b": 1}, "seed": 3}


@pytest.mark.parametrize("order", [*ORDERS, "mixed"])
def test_a_replay_prints_what_a_run_with_breaks_has_had(order, root, tmp_path, capsys):
    draw, state, steps = random.Random(order), None, list[list[list[int]]]()
    arguments = {"receipt": None, "return_index": True} | ORDERS.get(order, MIXED)
    words = [str(root)]
    if order == "mixed":
        sources = {name: {"file_root": str(root), "dir_filters": name} for name in "ab"}
        arguments["sources"] = sources
        given = {"sources": sources, "labels": "own"} | MIXED
        words = ["--reader", "mix", "--argument"]
        words += [f"{key}={json.dumps(value)}" for key, value in given.items()]
    for world, size, batches in [(2, 3, 4), (3, 2, 8), (3, 2, 3), (1, 4, 12), (2, 2, 5)]:
        ranks = [pipeline(root, r, world, size, resume=state, **arguments) for r in range(world)]
        for at in range(batches):
            if order == "mixed" and at == 2:
                for each in ranks:
                    readers.set_weights(each, "R", {"a": 1, "b": world})
            batch = [each.run()[2] for each in ranks]
            steps.append([np.asarray(it.as_array()).ravel().tolist() for it in batch])
        state = json.loads(json.dumps(readers.state(ranks[0], "R")))
    (tmp_path / "state").write_text(json.dumps(state))
    catalog = readers.catalog(ranks[0], "R")
    names = [catalog.name(it).decode() for it in range(len(catalog))]

    def replayed(*more):
        assert replay.main([str(tmp_path / "state"), *words, *map(str, more)]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    for step in draw.choices(range(len(steps)), k=by_tier(10, 30)):
        want = [
            [str(step), str(r), str(it), names[it]]
            for r, its in enumerate(steps[step])
            for it in its
        ]
        assert replayed("--step", step) == want
        rank = draw.randrange(len(steps[step]))
        assert replayed("--step", step, "--rank", rank) == [it for it in want if it[1] == str(rank)]
    run(ranks, 1)  # the state had one batch less
    found = [[[*map(int, line[:3])] for line in replayed("--name", name)] for name in names[:3]]
    for at in range(3):
        for step, rank, sample in found[at]:
            assert sample == at
            assert [str(step), str(rank), str(at), names[at]] in replayed("--step", step)
        assert found[at][0][0] >= len(steps)
