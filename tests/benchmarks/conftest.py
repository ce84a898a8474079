"""Data sets for benchmark.py, and the program itself, in this process."""

import json
import os
from dataclasses import dataclass
from typing import Any

import pytest

import benchmark
from benchmarks import dataset, workload
from benchmarks.workload import Settings
from bmap_tools import create
from tests.kit import devices
from tests.kit.pictures import make_pictures


@dataclass(frozen=True, slots=True)
class Run:
    """What a run prints, its exit status, and what it writes to the file of --json."""

    status: int
    out: str
    err: str
    kept: dict[str, Any]

    @property
    def words(self):
        """The table and the lines below it, wherever they are broken."""
        return " ".join(self.out.split())


@pytest.fixture
def bench(tmp_path_factory, capsys):
    """Runs benchmark.py."""

    def run(*arguments):
        kept = tmp_path_factory.mktemp("run") / "result.json"
        capsys.readouterr()
        try:
            status = benchmark.main(
                [str(it) for it in ("--seconds", 0, "--json", kept, *arguments)]
            )
        except SystemExit as stop:  # of argparse
            status = int(stop.code or 0)
        text = kept.read_text() if kept.exists() else ""  # a run that is refused may make it
        return Run(status, *capsys.readouterr(), json.loads(text or "{}"))

    return run


def make_shards(directory):
    """Pictures in `train`, and three containers of each format in `shards`."""
    make_pictures(directory / "train")
    dataset.pack(str(directory), lambda done: None, containers=3)
    return directory


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def contents(data):
    """The files of `data`, in list order."""
    return [path.read_bytes() for path in sorted((data / "train").glob("*/*"))]


@pytest.fixture
def small(data):
    return workload.prepare(str(data), Settings(batch_size=5, rounds=2, seconds=0))


@pytest.fixture(scope="session")
def disk(tmp_path_factory):
    """A disk with these pictures on its first partition."""
    with devices.disk(tmp_path_factory.mktemp("disk"), size=64 << 20, partition=True) as made:
        make_shards(made.mount / "data")
        os.sync()
        yield made


@pytest.fixture
def bmap(disk, tmp_path):
    """A map of the pictures on the disk."""
    path = tmp_path / "bmap.json"
    assert create.run(str(disk.mount / "data" / "train"), str(path), threads=1) == 0
    return path
