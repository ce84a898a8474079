"""Values of unusual types: what DALI accepts, and what it makes of them.

The oracle is the real fn.readers.file with the same value.
"""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.dali.queries import source
from tests.kit import versions
from tests.kit.dali import build, take
from tests.kit.paths import ROOT
from tests.readers.test_refusals import ALL

SHUFFLED = {"random_shuffle": True, "initial_fill": 4}
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "num_shards": {"stick_to_shard": True},
    "shard_id": {"num_shards": 2, "stick_to_shard": True},
    "seed": SHUFFLED,
    "initial_fill": {"random_shuffle": True, "seed": 3},
    "shuffle_after_epoch_seed": {"shuffle_after_epoch": True},
    "random_shuffle": {"seed": 3, "initial_fill": 4},
    "stick_to_shard": {"num_shards": 2},
    "file_filters": {},
    "pad_last_batch": {},
    "shuffle_after_epoch": {},
    "case_sensitive_filter": {"file_filters": "*.JPG"},
    "prefetch_queue_depth": {},
}
"""Arguments that make the one under test matter."""

INTEGERS: dict[str, list[Any]] = {
    "num_shards": ["2", " 2", b"2", 2.0, 2.9, True, np.float32(2), np.int64(2), np.array(2)],
    "shard_id": ["1", 1.5, 0.9, np.int8(1), True],
    "seed": ["7", "1_0", 7.0, 1.5, -1.9, 1e10, np.float64(1.5), np.uint64(7), False, 2**62],
    "initial_fill": ["5", 5.9, np.int32(5), True],
    "shuffle_after_epoch_seed": ["5", 5.5, -1.9, 2**32 + 5, True],
    "prefetch_queue_depth": ["2", 2.0, 2.5, np.float32(2), np.int64(2), True],
}
INERT: dict[str, list[Any]] = {
    "dont_use_mmap": [True],
    "read_ahead": [True],
    "tensor_init_bytes": [1],
    "bytes_per_sample_hint": [9, [9, 4]],
    "preserve": [True],
    "lazy_init": [True],
    "device": ["cpu"],
    "file_filters": [Path("*.jpg"), ("*.jpg",), np.str_("*.jpg")],
}
"""Arguments that do not change the output."""
FLAGS: dict[str, list[Any]] = {
    "random_shuffle": [1, 0, 2, 0.5, 0.0, np.bool_(True), np.int64(1), np.float32(0)],
    "pad_last_batch": [1, 0.5, np.True_],
    "stick_to_shard": [1, 0.5, np.False_],
    "shuffle_after_epoch": [1, 0.5],
}


def require(argument):
    """Skip a test of an argument that an older DALI lacks."""
    if argument == "shuffle_after_epoch_seed":
        versions.require("2.1")


def both(tree, **arguments):
    """Metadata and samples of ours, and of the real operator."""
    if "files" not in arguments:
        arguments["file_root"] = str(tree(11))
    ours = build(readers.file, name="R", **arguments)
    real = build(fn.readers.file, name="R", **{"dont_use_mmap": True} | arguments)
    return ((ours.reader_meta("R"), take(ours, 8)), (real.reader_meta("R"), take(real, 8)))


@pytest.mark.parametrize(
    ("argument", "value"),
    [(name, value) for name, values in (INTEGERS | FLAGS | INERT).items() for value in values],
    ids=repr,
)
def test_a_value_means_what_it_means_to_dali(tree, argument, value):
    require(argument)
    ours, real = both(tree, **NEIGHBOURS.get(argument, {}), **{argument: value})
    assert ours == real


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, 60.0), ({"stall_after": None}, None), ({"stall_after": np.float32(2)}, 2.0)],
    ids=["default", "never", "2 s"],
)
def test_a_reader_is_watched_as_its_argument_says(tree, given, expected):
    root = str(tree(3))
    mixed = {"sources": {name: {"file_root": root} for name in "ab"}, "labels": "own"}
    pipelines = [
        build(readers.file, name="R", file_root=root, **given),
        build(readers.mix, name="R", **mixed, **given),
    ]
    openings = [source(each, "R").opening for each in pipelines]
    assert [it.observe.keywords["stall_after"] for it in openings] == [expected] * 2
    assert openings[1].names == [os.fsencode(root)] * 2


@pytest.mark.parametrize("reader", [each for each in ALL if each != "columns"])  # it has another
def test_an_unknown_argument_is_refused_in_the_words_of_python(reader):
    operator = getattr(readers, reader)
    parameters = inspect.signature(operator).parameters.values()
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    required = {it.name: "x" for it in parameters if it.default is it.empty}
    words = rf"^{reader}\(\) got an unexpected keyword argument 'seeds'$"
    with pytest.raises(TypeError, match=words):
        operator(**required, seeds=1)
    with pytest.raises(TypeError, match=rf"^{reader}\(\) takes 0 positional arguments"):
        operator("x", **required)


@pytest.mark.long
def test_a_wrong_call_is_seen_by_a_type_checker(tmp_path):
    script = tmp_path / "calls.py"
    script.write_text("from dali_storage.readers import file\nfile(seeds=1)\nfile(seed='1')\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", script],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert 'Unexpected keyword argument "seeds" for "file"' in done.stdout
    assert 'Argument "seed" to "file" has incompatible type "str"' in done.stdout


@pytest.mark.parametrize("argument", NEIGHBOURS)
def test_none_means_the_default_of_an_argument(tree, argument):
    neighbours = {"pipeline": {"seed": 5}} | NEIGHBOURS[argument] | {argument: None}
    if argument == "case_sensitive_filter":
        neighbours["file_filters"] = "*.jpg"
    ours, real = both(tree, **neighbours)
    assert ours == real


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *((name, value) for name in INTEGERS for value in ("x", "1.5", [2], 1j, float("nan"))),
        ("num_shards", 0.9),
        ("shard_id", "2"),
        ("seed", 2**63),
        ("seed", float("inf")),
        ("prefetch_queue_depth", 0),
        ("prefetch_queue_depth", -1),
        ("random_shuffle", []),
    ],
    ids=repr,
)
def test_a_value_that_dali_refuses_is_refused_by_name(tree, argument, value):
    require(argument)
    given = {"file_root": str(tree(11))} | NEIGHBOURS[argument] | {argument: value}
    with pytest.raises((TypeError, ValueError, RuntimeError, OverflowError)):
        build(fn.readers.file, name="R", **given).build()
    with pytest.raises((TypeError, ValueError), match=argument):
        build(readers.file, name="R", **given)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *((name, value) for name in FLAGS for value in ("False", "", b"x", [0], {}, ...)),
        *(("case_sensitive_filter", value) for value in ("False", "")),
        *((name, "") for name in ("lazy_init", "skip_cached_images", "preserve")),
        ("initial_fill", 2**32 + 5),
        ("shard_id", 2**32),
        pytest.param("shuffle_after_epoch_seed", 2**63, marks=pytest.mark.dali("2.4")),
    ],
    ids=repr,
)
def test_a_value_that_dali_misreads_is_refused(tree, argument, value):
    given = {"file_root": str(tree(11))} | NEIGHBOURS.get(argument, {}) | {argument: value}
    given.pop("file_filters", None)
    build(fn.readers.file, name="R", dont_use_mmap=True, **given).build()
    with pytest.raises((TypeError, ValueError), match=argument):
        build(readers.file, name="R", **given)
