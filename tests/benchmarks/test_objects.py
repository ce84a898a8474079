"""The command objects of benchmark.py."""

import os
import shutil
from collections import Counter

import pytest

from benchmarks.legs import OBJECT_LEGS
from benchmarks.measure import fill_caches, results_of
from benchmarks.workload import Settings, prepare
from tests.kit.pictures import IMAGES, make_pictures

NAMES = [leg.name for leg in OBJECT_LEGS]
URL = "s3://data/train"


@pytest.fixture
def objects(tmp_path, server, bench):
    """Runs the command, on pictures in tmp_path/data; the bucket "data" is tmp_path/copy."""
    make_pictures(tmp_path / "data" / "train")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    server.serve("data", tmp_path / "copy")
    command = ["objects", "--datadir", tmp_path / "data", "--url", URL, "--rounds", 1]
    return lambda *options: bench(*command, "--batchsize", 5, *options)


@pytest.mark.long
def test_objects_measures_every_leg(objects, tmp_path, server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # --endpoint wins
    options = ("--requests", 7, "--hedge", 0.5, "--cache", tmp_path / "cache")
    done = objects("--endpoint", server.url, "--verify", *options)
    assert done.status == 0
    assert [*done.kept["readers"]] == NAMES
    for name, leg in done.kept["readers"].items():
        assert (leg["failed"], leg["skipped"]) == (None, None), name
        assert leg["summary"]["ratio"] > 0
        assert leg["summary"]["cpu_s_per_gb"] > 0
    assert max(request.under_way for request in server.log()) <= 25  # of DALI
    assert os.environ["AWS_ENDPOINT_URL"] == server.url
    monkeypatch.undo()


def test_legs_whose_options_are_not_given_are_not_run(objects):
    done = objects("--readers", ",".join(name for name in NAMES if name.startswith("object-store")))
    assert done.status == 0
    assert "object-store-hedged: not run: it needs --hedge" in done.out
    assert "object-store-cached: not run: it needs --cache" in done.out


def test_the_cache_is_warm_before_the_first_round(objects, tmp_path, server):
    (leg,) = (leg for leg in OBJECT_LEGS if leg.name == "object-store-cached")
    settings = Settings(url=URL, cache=str(tmp_path / "cache"), batch_size=5, seed=3)
    workload = prepare(str(tmp_path / "data"), settings)
    fill_caches([leg], workload, results_of([leg], workload))
    read = Counter(request.key for request in server.log(clear=True) if request.kind == "GET")
    assert len(read) == IMAGES
    assert objects("--readers", leg.name, "--cache", settings.cache, "--seed", 3).status == 0
    assert [request for request in server.log() if request.kind == "GET"] == []


def test_a_bucket_that_is_no_copy_is_refused(objects, tmp_path):
    train = tmp_path / "copy" / "train"
    picture = next(train.rglob("*.jpg"))
    picture.rename(other := picture.with_name(f"0{picture.name}"))
    refused = [objects()]
    with other.rename(picture).open("ab") as file:
        file.write(b"more")
    refused += [objects()]
    shutil.rmtree(train)
    refused += [objects()]
    assert [done.status for done in refused] == [2, 2, 2]
    names = f"--url {URL} is not a copy of {tmp_path}/data/train: the names of 24 objects"
    assert names in refused[0].err
    assert f"{picture.name} has another size" in refused[1].err
    assert f"--url {URL}: ValueError: no files found" in refused[2].err
