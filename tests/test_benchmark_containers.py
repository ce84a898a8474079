"""The command containers of benchmark.py, and the containers that it reads."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def, tfrecord

import benchmark
from benchmarks import arguments, command, dataset, environment, measure, packing
from benchmarks.container_legs import CONTAINER_LEGS, open_shards
from benchmarks.measure import Result
from benchmarks.shards import SUFFIXES, find
from benchmarks.workload import BadInputError, Settings, prepare

from . import devices
from .pictures import IMAGES, make_pictures
from .test_benchmark import fake_round, ignore

NAMES = [leg.name for leg in CONTAINER_LEGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pictures in train, and three containers of each format in shards."""
    return make(tmp_path_factory.mktemp("data"))


def make(directory: Path) -> Path:
    make_pictures(directory / "train")
    packing.make(str(directory), ignore, containers=3)
    return directory


def pictures(data: Path) -> list[bytes]:
    """The contents of all files, in list order."""
    return [path.read_bytes() for path in sorted((data / "train").glob("*/*"))]


def run(*options: object) -> int:
    """The exit status, also where argparse ends the program."""
    try:
        return benchmark.main([str(option) for option in options])
    except SystemExit as stop:
        return int(stop.code or 0)


def contents_of(directory: Path) -> dict[str, bytes]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


# The containers


def test_the_tars_have_the_pictures_and_their_labels_where_the_index_says(data: Path) -> None:
    files, words = pictures(data), []
    for number, tar in enumerate(sorted((data / "shards" / "webdataset").glob("*.tar"))):
        with tarfile.open(tar) as opened:
            found = {member.name: opened.extractfile(member) for member in opened}
            read = {name: file.read() for name, file in found.items() if file is not None}
        samples = range(8 * number, 8 * number + 8)
        assert read == {
            f"{i:06d}.{end}": what
            for i in samples
            for end, what in (("jpg", files[i]), ("cls", bytes([i // 8, 0, 0, 0])))
        }
        header, *lines = tar.with_suffix(".idx").read_text().splitlines()
        assert header == "v1.2 8"
        words = [line.split() for line in lines]
        packed = tar.read_bytes()
        for row in words:
            for _, offset, size, name in (row[:4], row[4:]):
                assert packed[int(offset) : int(offset) + int(size)] == read[name]
    assert len(words) == 8


def test_the_records_are_as_tensorflow_has_them(data: Path) -> None:
    """The frames by the format's description, the features as DALI's own reader finds them."""
    path = data / "shards" / "tfrecord" / "00001.tfrecord"
    contents = path.read_bytes()
    places = [
        tuple(map(int, line.split())) for line in path.with_suffix(".idx").read_text().splitlines()
    ]
    assert [start for start, _ in places[1:]] == [start + size for start, size in places[:-1]]
    assert sum(places[-1]) == len(contents)
    for start, size in places:
        record = contents[start : start + size]
        for part, checksum in ((record[:8], record[8:12]), (record[12:-4], record[-4:])):
            crc = google_crc32c.value(part)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32
            assert int.from_bytes(checksum, "little") == masked
        assert int.from_bytes(record[:8], "little") == size - 16
    read = features_of(path)
    assert read["image/format"] == [b"JPEG"] * 8
    assert read["image/filename"] == [f"{i:06d}.jpg".encode() for i in range(8, 16)]
    assert read["image/encoded"] == pictures(data)[8:16]
    assert [int.from_bytes(one, "little") for one in read["image/height"]] == [*range(40, 48)]
    assert {int.from_bytes(one, "little") for one in read["image/width"]} == {40}
    assert {int.from_bytes(one, "little") for one in read["image/class/label"]} == {1}


def features_of(path: Path) -> dict[str, list[bytes]]:
    """The bytes of every feature of the records, by DALI."""
    texts = ("image/format", "image/filename", "image/encoded")
    features = dict.fromkeys(texts, tfrecord.FixedLenFeature((), tfrecord.string, ""))
    for name in ("image/height", "image/width", "image/class/label"):
        features[name] = tfrecord.FixedLenFeature([1], tfrecord.int64, -1)

    @pipeline_def(batch_size=8, num_threads=1, device_id=None)
    def read() -> tuple[object, ...]:
        index = path.with_suffix(".idx")
        nodes = fn.readers.tfrecord(path=[path], index_path=[index], features=features)
        return tuple(nodes.values())

    pipe = read()
    outputs = pipe.run()
    return {
        name: [np.asarray(output.at(i)).tobytes() for i in range(8)]
        for name, output in zip(features, outputs, strict=True)
    }


def test_packing_is_reproducible_and_leaves_what_is_complete(data: Path, tmp_path: Path) -> None:
    again = make(tmp_path)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    kept = [(again / "shards" / form).stat().st_ino for form in ("webdataset", "tfrecord")]
    (again / "shards" / "tfrecord" / "00002.idx").unlink()
    packing.make(str(again), ignore, containers=3)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    assert (again / "shards" / "webdataset").stat().st_ino == kept[0]
    assert (again / "shards" / "tfrecord").stat().st_ino != kept[1]


def test_containers_of_other_pictures_are_made_anew(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "train" / "c0" / "00.jpg").unlink()
    packing.make(str(tmp_path), ignore, containers=3)
    for form in ("webdataset", "tfrecord"):
        assert find(str(tmp_path), form).counts.tolist() == [8, 8, 7]


def test_an_interrupt_leaves_no_part_of_a_format(tmp_path: Path) -> None:
    make_pictures(tmp_path / "train")

    def interrupt(done: int) -> None:
        if done > IMAGES:  # in the second format
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packing.make(str(tmp_path), interrupt, containers=3)
    assert os.listdir(tmp_path / "shards") == ["webdataset"]
    assert len(os.listdir(tmp_path / "shards" / "webdataset")) == 6


def test_files_of_the_user_beside_the_containers_are_not_deleted(tmp_path: Path) -> None:
    mine = make(tmp_path) / "shards" / "webdataset" / "mine.tar"
    mine.write_text("mine")
    with pytest.raises(FileExistsError, match="there are other files"):
        packing.make(str(tmp_path), ignore, containers=2)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("containers", [0, IMAGES + 1])
def test_a_container_has_a_sample(containers: int, data: Path) -> None:
    with pytest.raises(ValueError, match=f"must be from 1 to {IMAGES}, not {containers}"):
        packing.make(str(data), ignore, containers=containers)


def test_the_program_makes_the_pictures_and_packs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["dataset", str(tmp_path), "--images", "10", "--shards", "2"]
    monkeypatch.setattr(sys, "argv", words)
    dataset.main()
    assert len(pictures(tmp_path)) == 10
    for form in SUFFIXES:
        assert find(str(tmp_path), form).counts.tolist() == [5, 5]


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


def test_the_bytes_of_a_round_are_those_that_dali_delivers(data: Path, tmp_path: Path) -> None:
    """Of less than an epoch, in which both orders have other samples."""
    tars = find(str(data), "webdataset")

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def read() -> object:
        arguments = {"paths": tars.files, "index_paths": tars.indexes, "ext": ["jpg"]}
        return fn.readers.webdataset(**arguments, random_shuffle=True, seed=7)

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def read_files() -> object:
        return fn.readers.file(file_root=data / "train", random_shuffle=True, seed=7)[0]

    expected = []
    for pipe in (read(), read_files()):
        batches = [pipe.run()[0] for _ in range(2)]
        expected.append(sum(len(batch.at(i)) for batch in batches for i in range(5)))
    assert expected[0] != expected[1]
    kept, legs = tmp_path / "result.json", ("--legs", "webdataset,webdataset-samples")
    options = ("--seed", 7, "--batches", 2, "--batchsize", 5, "--rounds", 1, "--json", kept)
    assert run("containers", "--datadir", data, *legs, *options) == 0
    found = json.loads(kept.read_text())["legs"]
    assert [leg["rounds"][0]["bytes"] for leg in found.values()] == expected


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


def test_the_page_cache_is_filled_with_the_containers(tmp_path: Path) -> None:
    directory = str(make(tmp_path))
    workload = open_shards(prepare(directory, Settings()), directory)
    for path in (tmp_path / "train").glob("*/*"):
        path.unlink()
    environment.fill_page_cache(workload)
    missing = tmp_path / "shards" / "tfrecord" / "00002.tfrecord"
    missing.unlink()
    with pytest.raises(BadInputError, match=f"No such file or directory: {missing}"):
        environment.fill_page_cache(workload)


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
    wrong = type(window)("wrong", "", window.read, form=window.form, by_container=False)
    monkeypatch.setattr(command, "CONTAINER_LEGS", (window, wrong))
    options = ("--seed", 1, "--rounds", 1, "--verify")
    assert run("containers", "--datadir", data, *options) == 1
    shown = capsys.readouterr()
    assert "verifying dali-webdataset: the same as the files" in shown.err
    assert re.search(r"verifying wrong: \d+ differences from the files", shown.err)


def test_legs_are_compared_with_those_of_dali_of_the_same_format() -> None:
    speeds = {"dali-webdataset": 10, "dali-webdataset-nommap": 20, "webdataset": 30}
    speeds |= {"dali-tfrecord": 60, "tfrecord-direct": 30, "records": 50}
    results = {
        leg.name: Result(leg.name, [fake_round(speeds[leg.name])], baselines=leg.baselines)
        for leg in CONTAINER_LEGS
        if leg.name in speeds
    }
    ratios = {name: row["ratio"] for name, row in measure.summarize(results).items()}
    expected = {"dali-webdataset": 0.5, "dali-webdataset-nommap": 1, "webdataset": 1.5}
    expected |= {"dali-tfrecord": 1, "tfrecord-direct": 0.5, "records": 2.5}
    assert ratios == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "containers needs --datadir DIR\n"),
        ("--bmap map.json", "containers needs --datadir DIR\n"),
        ("--datadir FILES", "No such file or directory: FILES/shards/webdataset; python -m bench"),
        ("--datadir FEWER", "24 samples in webdataset of 23 files in FEWER/train; python -m benc"),
        ("--datadir FILES --legs dali", "unknown leg 'dali'; known are dali-webdataset, "),
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
    assert "round" not in shown.out + shown.err.replace("--rounds", "")


# Memory


def test_the_memory_of_an_epoch_is_measured_in_a_new_process(data: Path) -> None:
    """More than its batches have, and less than what a process has anyway."""
    legs = "webdataset-memory,webdataset-samples"
    command = [sys.executable, "-m", "benchmarks.memory", str(data), "--legs", legs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    header, measured, skipped = done.stdout.splitlines()
    assert header.split() == ["leg", "anonymous", "MiB", "mapped", "MiB", "first", "batch", "s"]
    name, *figures = measured.split()
    assert name == "webdataset-memory"
    assert 0 <= float(figures[0]) < 200
    assert 0 < float(figures[2]) < 10
    assert skipped == "webdataset-samples           not run: without --seed nothing is shuffled"


def test_the_growth_of_memory_is_seen() -> None:
    """In a process of its own, because this one has memory to spare."""
    code = "from benchmarks.memory import resident; before = resident()\n"
    code += "kept = b'x' * (64 << 20); print(resident()[0] - before[0] >> 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 63 <= int(done.stdout) <= 70


# The demo


@pytest.mark.parametrize(
    ("given", "statuses", "tables"),
    [((), (0, 1), 2), (("--legs", "dali"), (0,), 1), ((), (130,), 1)],
)
def test_the_demo_has_a_second_table_of_containers(
    given: Sequence[str],
    statuses: Sequence[int],
    tables: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[Namespace] = []

    def compare(options: Namespace) -> int:
        compared.append(options)
        return statuses[len(compared) - 1]

    monkeypatch.setattr(command, "_make_demo", lambda options: None)
    monkeypatch.setattr(command, "_compare", compare)
    assert run("demo", *given, "--json", "figures.json") == statuses[-1]
    assert len(compared) == tables
    if tables == 2:
        assert [options.json for options in compared] == ["figures.json", None]
        assert compared[1].command == arguments.CONTAINERS
        assert set(compared[1].legs) < set(NAMES)
        assert compared[1].verify
        assert arguments.settings(compared[1]).batches == 63
