"""Each command of benchmark.py measures its legs, once with --verify."""

import re
import shlex
import signal
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import legs, workload
from benchmarks.legs import CONTAINER_LEGS, LEGS
from benchmarks.workload import Settings
from tests.kit.paths import ROOT
from tests.kit.pictures import IMAGES
from tests.kit.process import started

FILES, CONTAINERS = ([leg.name for leg in each] for each in (LEGS, CONTAINER_LEGS))


def start(*arguments):
    command = [sys.executable, *arguments]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(done, names, same, batch_size):
    """The legs that a run has measured; the others say why they are not."""
    assert done.status == 0, done.err
    assert [*done.kept["readers"]] == [*names]
    found = {}
    for name, leg in done.kept["readers"].items():
        if leg["skipped"] is not None:
            assert f"{name}: not run: {leg['skipped']}" in done.words
            continue
        found[name] = leg
        assert leg["failed"] is None
        assert f" {name}{same}" in done.err
        for one in leg["rounds"]:
            batches = len(one["waits_seconds"])
            assert (one["samples"], batches >= 10) == (batches * batch_size, True)
            assert 0 < sum(one["waits_seconds"]) <= one["seconds"]
        speeds = [one["samples"] / one["seconds"] for one in leg["rounds"]]
        assert leg["summary"]["img_per_s"] == pytest.approx(np.median(speeds))
        assert leg["summary"]["img_per_s_q1"] == pytest.approx(np.percentile(speeds, 25))
        assert leg["first_seconds"] > 0
    return found


def test_compare_measures_every_leg(data, contents, tmp_path, bench):
    done = bench(
        *("--batchsize", 8, "compare", "--datadir", data, "--verify", "--rounds", 1, "--seed", 7),
        *("--threads", 1, "--copying-lanes", 2, "--plot", tmp_path / "result.png"),
    )
    legs = ran(done, FILES, ": the same as fn.readers.file", 8)
    # A round on its own: its 80 images are three epochs of 24, and 8 more.
    least = 3 * sum(map(len, contents))
    assert all(one["bytes"] > least for leg in legs.values() for one in leg["rounds"])
    assert [*legs][:2] == FILES[:2]
    assert done.kept["settings"]["batch_size"] == 8
    assert done.kept["environment"]["page_cache"] == "hot"
    assert (tmp_path / "result.png").read_bytes().startswith(b"\x89PNG")
    order = workload.prepare(str(data), Settings(batch_size=8, seed=7)).order.ravel().tolist()
    assert sorted(order) == list(range(IMAGES)) != order
    lanes, every = legs["python-file"]["copying_lanes"], legs["python-file"]["lanes"]
    assert lanes == min(2, every)
    assert re.search(
        rf"lanes that may copy at the same time, of all: .*python-file {lanes}/{every}, ", done.out
    )
    assert "memory 1/1" in done.out
    assert [legs[name]["memory"] for name in ("dali", "python-file", "memory")] == [
        *(None, "cpu", "cpu")
    ]
    assert (legs["dali"]["lanes"], legs["memory"]["lanes"]) == (None, 1)


def test_a_single_leg_takes_options_before_and_after_its_command(data, contents, bench):
    done = bench("--batchsize", 6, "--batches", 30, "dali", "--datadir", data, "--threads", 1)
    assert done.status == 0
    assert re.search(r"round 1/1 dali: [\d,]+ img/s", done.err)
    rounds = done.kept["readers"]["dali"]["rounds"]
    assert {(len(one["waits_seconds"]), one["samples"]) for one in rounds} == {(4, 24)}
    assert {one["bytes"] for one in rounds} == {sum(map(len, contents))}
    assert len(rounds) == 8


@pytest.mark.long
def test_ctrl_c_shows_what_was_measured(data):
    command = "--rounds", 100000, "compare", "--datadir", data, "--readers", "dali,naive"
    with start(ROOT / "benchmark.py", *command) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("round 2/"))
        process.send_signal(signal.SIGINT)
        table, log = process.communicate(timeout=120)
    assert process.returncode == 130, log
    assert "interrupted" in log
    assert re.search(r"dali +[\d,]+", table)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("rich", "[bench]"),
        pytest.param("nvidia.dali", "[cuda12]", marks=pytest.mark.long),
    ],
)
def test_a_package_that_cannot_be_imported_is_named_with_its_remedy(broken, said):
    script = f"import runpy, sys; sys.modules[{broken!r}] = None; "
    script += "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    with start("-c", script, ROOT / "benchmark.py", "demo") as process:
        _, log = process.communicate(timeout=120)
    assert process.returncode == 2
    assert shlex.split(log.splitlines()[-1])[-1].endswith(f"{ROOT}{said}")
    assert "Traceback" not in log


@pytest.mark.parametrize("seed", [(), ("--seed", 7)])
@pytest.mark.long
def test_containers_measures_every_leg(seed, data, contents, bench):
    options = ("--batchsize", 5, "--rounds", 1, "--threads", 1, "--verify", *seed)
    done = bench("containers", "--datadir", data, *options)
    legs, epoch = ran(done, CONTAINERS, ": the same as the files", 5), sum(map(len, contents))
    for name in {*CONTAINERS} - {*legs}:
        about_seed = "without --seed nothing is shuffled" in done.kept["readers"][name]["skipped"]
        assert about_seed == (not seed and name.endswith("-samples"))
    assert all(one["bytes"] > 2 * epoch for leg in legs.values() for one in leg["rounds"])
    assert {name for name in CONTAINERS if name.startswith("dali-")} <= {*legs}
    assert {"webdataset", "webdataset-read", "tfrecord", "records-memory"} <= {*legs}


def test_a_leg_that_cannot_run_is_listed_with_its_reason(data, monkeypatch, bench):
    monkeypatch.setattr(legs, "available_memory_bytes", lambda: 1000)
    options = ("compare", "--datadir", data, "--rounds", 1, "--readers")
    reason = "memory: not run: the data (0.0 GB) would fill more than half"
    done = bench(*options, "memory,dali")
    assert done.status == 0
    assert reason in done.words
    done = bench(*options, "memory")
    assert done.status == 2
    assert "no reader can run here: memory: the data" in done.err
