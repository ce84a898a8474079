"""The command objects of benchmark.py."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

import benchmark
from benchmarks.legs import OBJECT_LEGS
from benchmarks.measure import fill_caches, results_of
from benchmarks.workload import Settings, prepare
from tests.kit.objects.client import FaultServer
from tests.kit.pictures import IMAGES, make_pictures

NAMES = [leg.name for leg in OBJECT_LEGS]
OURS = [name for name in NAMES if name.startswith("object-store")]


@pytest.fixture
def data(tmp_path: Path, server: FaultServer) -> Path:
    """A directory with pictures; a copy is the bucket "data"."""
    make_pictures(tmp_path / "data" / "train")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    server.serve("data", tmp_path / "copy")
    return tmp_path / "data"


def run(data: Path, *options: object) -> int:
    url = "s3://data/train"
    command = ["objects", "--datadir", data, "--url", url, "--batchsize", 5, "--rounds", 1]
    return benchmark.main([str(option) for option in (*command, *options)])


def test_every_leg_reads_the_objects(
    data: Path, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # --endpoint wins
    figures = data / "figures.json"
    options = ("--requests", 7, "--hedge", 0.5, "--cache", data.parent / "cache")
    assert run(data, "--endpoint", server.url, "--verify", "--json", figures, *options) == 0
    found = json.loads(figures.read_text())
    assert [*found["legs"]] == NAMES
    for name, leg in found["legs"].items():
        assert (leg["failed"], leg["skipped"]) == (None, None), name
        assert leg["summary"]["ratio"] > 0
        assert leg["summary"]["cpu_s_per_gb"] > 0
    assert max(request.under_way for request in server.log()) <= 25  # of DALI
    assert os.environ["AWS_ENDPOINT_URL"] == server.url
    monkeypatch.undo()


def test_legs_whose_options_are_not_given_are_not_run(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, "--legs", ",".join(OURS)) == 0
    printed = capsys.readouterr().out
    assert "object-store-hedged: not run: it needs --hedge" in printed
    assert "object-store-cached: not run: it needs --cache" in printed


def test_the_cache_is_warm_before_the_first_round(data: Path, server: FaultServer) -> None:
    (leg,) = (leg for leg in OBJECT_LEGS if leg.name == "object-store-cached")
    settings = Settings(
        url="s3://data/train", cache=str(data.parent / "cache"), batch_size=5, seed=3
    )
    workload = prepare(str(data), settings)
    fill_caches([leg], workload, results_of([leg], workload))
    read = Counter(request.key for request in server.log(clear=True) if request.kind == "GET")
    assert len(read) == IMAGES
    options = ("--legs", leg.name, "--cache", settings.cache, "--seed", 3)
    assert run(data, *options) == 0
    assert [request for request in server.log() if request.kind == "GET"] == []


@pytest.mark.parametrize("threads", [2, 8])
def test_legs_of_dali_have_their_own_number_of_threads(
    data: Path, server: FaultServer, threads: int
) -> None:
    server.set(latency=0.02)
    options = ("--threads", 1, "--batchsize", IMAGES, "--legs", f"dali-s3-{threads}")
    assert run(data, *options) == 0
    gets = [request.under_way for request in server.log() if request.kind == "GET"]
    assert threads / 2 < max(gets) <= threads


def test_bytes_that_differ_are_found(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = next((data.parent / "copy").rglob("*.jpg"))
    content = bytearray(picture.read_bytes())
    content[-10] ^= 1
    picture.write_bytes(content)
    assert run(data, "--legs", "dali-s3-2,object-store", "--verify") == 1
    printed = capsys.readouterr().out
    for name in ("dali-s3-2", "object-store"):
        assert f"{name}: failed: 1 differences from the files in --datadir" in printed


def test_a_bucket_that_is_no_copy_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = next((data.parent / "copy").rglob("*.jpg"))
    picture.rename(other := picture.with_name(f"0{picture.name}"))
    assert run(data) == 2
    refused = capsys.readouterr().err
    assert (
        f"--url s3://data/train is not a copy of {data}/train: the names of 24 objects" in refused
    )
    with other.rename(picture).open("ab") as file:
        file.write(b"more")
    assert run(data) == 2
    assert f"{picture.name} has another size" in capsys.readouterr().err
    shutil.rmtree(data.parent / "copy" / "train")
    assert run(data) == 2
    assert "--url s3://data/train: ValueError: no files found" in capsys.readouterr().err
