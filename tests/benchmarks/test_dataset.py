"""The data that the benchmark makes, and how torchvision's side reads CIFAR-10."""

import os
from pathlib import Path

import pytest

from benchmarks import dataset
from tests.benchmarks.conftest import make_shards


def ignore(done):
    pass


def contents_of(directory):
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def test_the_data_set_is_complete_and_reproducible(tmp_path):
    train = Path(dataset.make(str(tmp_path), ignore, images=20))
    files = contents_of(train)
    assert train == tmp_path / "train"
    assert len(files) == len(set(files.values())) == 20
    assert len({os.path.dirname(name) for name in files}) == dataset.CLASSES
    assert all(40_000 <= len(contents) <= 180_000 for contents in files.values())
    made = train.stat().st_ino
    dataset.make(str(tmp_path), ignore, images=20)
    assert train.stat().st_ino == made
    (train / next(iter(files))).unlink()
    dataset.make(str(tmp_path), ignore, images=20)
    assert contents_of(train) == files
    assert os.listdir(tmp_path) == ["train"]


def test_packing_is_reproducible_and_leaves_what_is_complete(data, tmp_path):
    again = make_shards(tmp_path)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    kept = [(again / "shards" / form).stat().st_ino for form in ("webdataset", "tfrecord")]
    (again / "shards" / "tfrecord" / "00002.idx").unlink()
    dataset.pack(str(again), ignore, containers=3)
    assert contents_of(again / "shards") == contents_of(data / "shards")
    assert (again / "shards" / "webdataset").stat().st_ino == kept[0]
    assert (again / "shards" / "tfrecord").stat().st_ino != kept[1]


def test_the_demo_deletes_no_file_of_the_user(tmp_path, monkeypatch, bench):
    mine = tmp_path / "demo" / "pictures" / "train" / "class_0" / "mine.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    monkeypatch.chdir(tmp_path)
    done = bench("demo")
    assert done.status == 2
    message = f"demo: cannot make 2000 images in {tmp_path}/demo/pictures: FileExistsError: there "
    assert f"{message}are other files than those of the demo: demo/pictures/train" in done.err
    assert mine.read_text() == "mine"


def test_making_a_data_set_that_is_interrupted_leaves_nothing(tmp_path):
    def interrupt(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.make(str(tmp_path), interrupt, images=10)
    assert os.listdir(tmp_path) == []
