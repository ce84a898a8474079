"""The command containers of benchmark.py, and the containers that it reads."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import arguments, command, dataset, environment
from benchmarks.legs import CONTAINER_LEGS, TABLES
from benchmarks.workload import Settings, find, open_shards, prepare
from tests.benchmarks.test_compare import ignore, run
from tests.kit import devices
from tests.kit.pictures import make_pictures

NAMES = [leg.name for leg in CONTAINER_LEGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pictures in train, and three containers of each format in shards."""
    return make(tmp_path_factory.mktemp("data"))


def make(directory: Path) -> Path:
    make_pictures(directory / "train")
    dataset.pack(str(directory), ignore, containers=3)
    return directory


def pictures(data: Path) -> list[bytes]:
    """The contents of all files, in list order."""
    return [path.read_bytes() for path in sorted((data / "train").glob("*/*"))]


def contents_of(directory: Path) -> dict[str, bytes]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


# The containers


def test_packing_is_reproducible_and_leaves_what_is_complete(data: Path, tmp_path: Path) -> None:
    again = make(tmp_path)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    kept = [(again / "shards" / form).stat().st_ino for form in ("webdataset", "tfrecord")]
    (again / "shards" / "tfrecord" / "00002.idx").unlink()
    dataset.pack(str(again), ignore, containers=3)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    assert (again / "shards" / "webdataset").stat().st_ino == kept[0]
    assert (again / "shards" / "tfrecord").stat().st_ino != kept[1]


# The command


@pytest.mark.parametrize("seed", [(), ("--seed", 7)])
def test_every_leg_delivers_the_files(
    seed: Sequence[object], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    options = ("--batchsize", 5, "--rounds", 1, "--threads", 1, "--json", kept, "--verify", *seed)
    assert run("containers", "--datadir", data, *options) == 0
    shown = capsys.readouterr()
    legs = json.loads(kept.read_text())["legs"]
    assert list(legs) == NAMES
    for name, leg in legs.items():
        if leg["skipped"] is not None:
            about_seed = "without --seed nothing is shuffled" in leg["skipped"]
            assert about_seed == (not seed and name.endswith("-samples"))
            assert f"{name}: not run: {leg['skipped']}" in re.sub(r"\s+", " ", shown.out)
            continue
        assert f"verifying {name}: the same as the files" in shown.err
        (one,) = leg["rounds"]
        assert one["samples"] == 25
        assert 0 <= one["bytes"] - sum(map(len, pictures(data))) <= max(map(len, pictures(data)))
    run_here = {name for name in NAMES if legs[name]["skipped"] is None}
    assert {name for name in NAMES if name.startswith("dali-")} <= run_here
    assert {"webdataset", "webdataset-memory", "tfrecord", "records", "records-memory"} <= run_here


def test_block_reads_by_a_map_of_the_containers_made_for_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    legs = [name for name in NAMES if "block" in name]
    with devices.disk(tmp_path, size=64 << 20) as disk:
        make(disk.mount / "data")
        os.sync()
        options = ("--datadir", disk.mount / "data", "--seed", 1, "--rounds", 1, "--verify")
        assert run("containers", *options, "--legs", ",".join(legs)) == 0
    shown = capsys.readouterr().err
    assert [name for name in legs if f"verifying {name}: the same as the files" in shown] == legs


def test_a_wrong_byte_in_a_container_is_found_in_every_leg_that_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make(tmp_path)
    with open(find(str(data), "webdataset").files[1], "r+b") as tar:
        tar.seek(512 + 11)
        byte = tar.read(1)
        tar.seek(512 + 11)
        tar.write(bytes([byte[0] ^ 1]))
    legs = ("--legs", "dali-webdataset,webdataset,records,dali-tfrecord", "--rounds", 1)
    options = ("--seed", 1, "--batchsize", 8, "--verify")
    assert run("containers", "--datadir", data, *legs, *options) == 1
    shown = capsys.readouterr()
    for name in ("dali-webdataset", "webdataset", "records"):
        assert re.search(rf"{name}: sample \d+, .*/c1/08\.jpg: bytes: \d+ .* at 11", shown.err)
        assert f"{name}: failed: 1 differences from the files" in shown.out
        assert f"round 1/1 {name}" not in shown.err
    assert "verifying dali-tfrecord: the same as the files" in shown.err


def test_a_leg_in_another_order_is_found(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a whole shuffle, what a window delivers, and the other way round."""
    (window,) = (leg for leg in CONTAINER_LEGS if leg.name == "dali-webdataset")
    wrong = replace(window, name="wrong", adapt=lambda workload: workload)
    monkeypatch.setitem(TABLES, "containers", (window, wrong))
    options = ("--seed", 1, "--rounds", 1, "--verify")
    assert run("containers", "--datadir", data, *options) == 1
    shown = capsys.readouterr()
    assert "verifying dali-webdataset: the same as the files" in shown.err
    assert re.search(r"verifying wrong: \d+ differences from the files", shown.err)


def test_the_page_cache_is_filled_with_the_containers(data: Path) -> None:
    found = environment.files_of(open_shards(prepare(str(data), Settings()), str(data)))
    assert {*map(os.fsdecode, found)} == {*map(str, (data / "shards").glob("*/*.t*"))}


def test_legs_are_compared_with_those_of_dali_of_the_same_format() -> None:
    for leg in CONTAINER_LEGS:
        form = "tfrecord" if "tfrecord" in leg.name else "webdataset"
        of_dali = tuple(name for name in NAMES if name.startswith(f"dali-{form}"))
        assert leg.family.baselines == of_dali


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--bmap map.json", "containers needs --datadir DIR\n"),
        ("--datadir FILES", "No such file or directory: FILES/shards/webdataset; python -m bench"),
        ("--datadir FEWER", "24 samples in webdataset of 23 files in FEWER/train; python -m benc"),
    ],
)
def test_bad_input_is_refused_before_any_measurement(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, fewer = tmp_path / "files", tmp_path / "fewer"
    make_pictures(files / "train")
    (make(fewer) / "train" / "c0" / "00.jpg").unlink()
    options, said = (
        text.replace("FILES", str(files)).replace("FEWER", str(fewer)) for text in (options, said)
    )
    assert run("containers", *options.split()) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "round" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("given", "statuses"), [((), (0, 1)), (("--legs", "dali"), (0,)), ((), (130,))]
)
def test_the_demo_has_a_second_table_of_containers(
    given: Sequence[str], statuses: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Namespace] = []

    def compare(options: Namespace) -> int:
        compared.append(options)
        return statuses[len(compared) - 1]

    monkeypatch.setattr(command, "_make_demo", lambda options: None)
    monkeypatch.setattr(command, "_compare", compare)
    assert run("demo", *given, "--json", "figures.json") == statuses[-1]
    assert len(compared) == len(statuses)
    if len(compared) == 2:
        assert [options.json for options in compared] == ["figures.json", None]
        assert (compared[1].command, compared[1].verify) == ("containers", True)
        assert set(compared[1].legs) < set(NAMES)
        assert arguments.settings(compared[1]).batches == 63
