"""benchmark.py measures the right things, and refuses bad input before it measures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

import benchmark
from benchmarks import dataset, legs, measure, pipelines, verify, workload
from benchmarks.legs import LEGS, REFERENCE, TABLES, Leg
from benchmarks.measure import Result, Round
from benchmarks.workload import Settings, Workload
from dali_storage.backends.memory import MemoryReader
from tests.kit.paths import ROOT
from tests.kit.pictures import IMAGES, make_pictures
from tests.kit.process import started

NAMES = [leg.name for leg in LEGS]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pictures in its subdirectory train."""
    directory = tmp_path_factory.mktemp("data")
    make_pictures(directory / "train")
    return directory


@pytest.fixture
def small(data: Path) -> Workload:
    return workload.prepare(str(data), Settings(batch_size=5, rounds=2))


def sizes_bytes(data: Path) -> list[int]:
    """In list order."""
    return [path.stat().st_size for path in sorted((data / "train").glob("*/*"))]


def ignore(done: int) -> None:
    pass


def run(*arguments: object) -> int:
    """The exit status, also where argparse ends the program."""
    try:
        return benchmark.main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)


def start(
    *arguments: object, program: Sequence[object] = ()
) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, *(program or [ROOT / "benchmark.py"]), *arguments]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Commands


def test_compare_measures_every_leg(data: Path, tmp_path: Path) -> None:
    kept, picture = tmp_path / "result.json", tmp_path / "result.png"
    with start(
        *("--batchsize", 8, "compare", "--datadir", data, "--verify", "--rounds", 2, "--seed", 7),
        *("--json", kept, "--plot", picture),
    ) as process:
        table, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    document = json.loads(kept.read_text())
    assert list(document["legs"]) == NAMES
    for name, leg in document["legs"].items():
        assert name in table
        if leg["skipped"] is not None:
            assert leg["skipped"] in re.sub(r"\s+", " ", table)
            continue
        assert leg["failed"] is None
        assert f"verifying {name}: the same" in log
        for one in leg["rounds"]:
            assert (one["samples"], one["bytes"]) == (IMAGES, sum(sizes_bytes(data)))
            assert len(one["waits_seconds"]) == 3
            assert 0 < sum(one["waits_seconds"]) <= one["seconds"]
        speeds = [one["samples"] / one["seconds"] for one in leg["rounds"]]
        assert leg["summary"]["img_per_s"] == pytest.approx(np.median(speeds))
        assert leg["summary"]["img_per_s_min"] == pytest.approx(min(speeds))
    assert [name for name in NAMES if document["legs"][name]["skipped"] is None][:2] == NAMES[:2]
    assert document["settings"]["batch_size"] == 8
    assert document["environment"]["page_cache"] == "hot"
    assert picture.read_bytes().startswith(b"\x89PNG")
    order = workload.prepare(str(data), Settings(batch_size=8, seed=7)).order.ravel().tolist()
    assert sorted(order) == list(range(IMAGES)) != order


def test_options_may_precede_or_follow_the_command_of_a_single_leg(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    options = ("--batchsize", 5, "--batches", 6, "--json", kept, "dali", "--datadir", data)
    assert run(*options, "--threads", 1) == 0
    assert re.search(r"round 1/1 dali: [\d,]+ img/s", capsys.readouterr().err)
    (one,) = json.loads(kept.read_text())["legs"]["dali"]["rounds"]
    # DALI pads the last batch of an epoch of 24, and then begins the next one.
    assert one["samples"] == 30
    assert one["bytes"] == sum(sizes_bytes(data)) + sum(sizes_bytes(data)[:6])


def test_the_lanes_and_buffers_of_every_leg_are_reported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    arguments = ("compare", "--datadir", data, "--legs", "dali,python-file,memory", "--rounds", 1)
    assert run(*arguments, "--threads", 1, "--json", kept, "--copying-lanes", 2) == 0
    found = json.loads(kept.read_text())["legs"]
    lanes = {name: (leg["copying_lanes"], leg["lanes"]) for name, leg in found.items()}
    at_once, every = lanes.pop("python-file")
    assert at_once == min(2, every)
    assert lanes == {"dali": (None, None), "memory": (1, 1)}
    assert [leg["memory"] for leg in found.values()] == [None, "cpu", "cpu"]
    shown = f"lanes, copying at once/all: python-file {at_once}/{every}, memory 1/1"
    assert shown in capsys.readouterr().out


def test_interrupt_shows_what_was_measured(data: Path) -> None:
    command = "--rounds", 100000, "compare", "--datadir", data, "--legs", "dali,naive"
    with start(*command) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("round 2/"))
        process.send_signal(signal.SIGINT)
        table, log = process.communicate(timeout=60)
    assert process.returncode == 130, log
    assert "interrupted" in log
    assert re.search(r"dali +[\d,]+", table)


# Verification


def altered(what: str, sample: int) -> Leg:
    """A leg that reads naively, in batches of 5, and changes one sample."""

    def batches(of: Workload) -> Iterator[tuple[list[Any], list[Any]]]:
        for first, (files, labels) in zip(count(0, 5), pipelines.naive_batches(of), strict=False):
            slot = sample - first
            if 0 <= slot < 5 and what == "byte":
                files[slot] = files[slot].copy()
                files[slot][11] ^= 1
            elif 0 <= slot < 5 and what == "length":
                files[slot] = files[slot][:-1]
            elif 0 <= slot < 5 and what == "label":
                labels[slot] = labels[slot] + 1
            yield files, labels

    def read(of: Workload) -> pipelines.Nodes:
        contents, labels = fn.external_source(source=batches(of), num_outputs=2, batch=True)
        return contents, labels

    return Leg("altered", REFERENCE.family, pipelines.reading(read))


@pytest.mark.parametrize(
    ("what", "said"),
    [("byte", "bytes: .* at 11"), ("length", "bytes: uint8"), ("label", "label: 2 instead of 1")],
)
def test_verification_finds_the_only_wrong_sample(what: str, said: str, small: Workload) -> None:
    (difference,) = verify.differences(altered(what, 13), small, ignore)
    assert re.fullmatch(rf"sample 13, .*/c1/13\.jpg: {said}.*", difference)
    assert list(verify.differences(altered("nothing", 0), small, ignore)) == []


def test_a_leg_that_differs_fails_and_is_not_timed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TABLES, "compare", (LEGS[0], altered("byte", 3)))
    assert run("compare", "--datadir", data, "--batchsize", 5, "--rounds", 1, "--verify") == 1
    shown = capsys.readouterr()
    assert "altered: sample 3, " in shown.err
    assert "1 differences from fn.readers.file" in shown.out
    assert "round 1/1 altered" not in shown.err


# Legs that cannot run


def test_a_leg_that_cannot_run_is_listed_with_its_reason(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(legs, "available_memory_bytes", lambda: 1000)
    arguments = ("compare", "--datadir", data, "--rounds", 1, "--legs")
    assert run(*arguments, "memory,dali") == 0
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "memory: not run: the data (0.0 GB) would fill more than half" in shown
    assert run(*arguments, "memory") == 2
    assert "no leg can run here: memory: the data" in capsys.readouterr().err


def test_a_leg_that_fails_does_not_stop_the_others(small: Workload) -> None:
    def fail(of: Workload) -> pipelines.Nodes:
        raise PermissionError(13, "Permission denied", "/dev/nvme0n1")

    chosen = (Leg("broken", REFERENCE.family, pipelines.reading(fail)), LEGS[0])
    results = {leg.name: Result(leg.name) for leg in chosen}
    measure.measure(chosen, small, results)
    assert results["broken"].failed == "PermissionError: Permission denied: /dev/nvme0n1"
    assert len(results["dali"].rounds) == 2


# Figures


def fake_round(img_per_s: float) -> Round:
    return Round(100 / img_per_s, 3.0, 100, 2 * 10**9, np.array([0.001] * 99 + [1.0]))


def test_figures() -> None:
    speeds = {"dali": [10, 20, 30], "dali-nommap": [20, 10, 40], "other": [30, 50, 40]}
    baselines = REFERENCE.family.baselines
    results = {
        name: Result(name, [*map(fake_round, speeds[name])], baselines=baselines) for name in speeds
    }
    results["skipped"] = Result("skipped", skipped="because")
    figures = measure.summarize(results)
    assert list(figures) == list(speeds)
    other = figures["other"]
    assert other["ratio"] == pytest.approx(1.5)  # of 30/20, 50/20 and 40/40
    assert [other[key] for key in ("img_per_s", "img_per_s_min", "img_per_s_max")] == pytest.approx(
        [40, 30, 50]
    )
    assert other["gb_per_s"] == pytest.approx(0.8)
    assert other["cpu_s_per_gb"] == pytest.approx(1.5)
    assert (other["cpu_us_per_img"], other["cpu_ratio"]) == (pytest.approx(30_000), 1)
    assert other["wait_p50_ms"] == pytest.approx(1)
    assert other["wait_p99_ms"] > 1
    assert "ratio" not in measure.summarize({"other": results["other"]})["other"]


def test_legs_take_turns_and_cold_caches_are_dropped_before_each(
    small: Workload, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dropped: list[int] = []
    names = ["memory", "dali", "dali-nommap"]
    results = {name: Result(name) for name in names}
    measured = [results[name].rounds for name in names]
    monkeypatch.setattr(measure, "drop_caches", lambda: dropped.append(sum(map(len, measured))))
    results["memory"].skipped = "so that its turns are those of the others"
    chosen = [leg for name in names for leg in LEGS if leg.name == name]
    settings = replace(small.settings, rounds=3, cold=True)
    measure.measure(chosen, replace(small, order=small.order[:1], settings=settings), results)
    turns = re.findall(r"round \d/3 (\S+):", capsys.readouterr().err)
    assert turns == ["dali", "dali-nommap", "dali-nommap", "dali", "dali", "dali-nommap"]
    assert dropped == list(range(6))


def test_readers_are_opened_before_the_clock_starts(
    small: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = MemoryReader.__init__

    @wraps(really)
    def slow(*arguments: Any, **options: Any) -> None:
        time.sleep(0.5)
        really(*arguments, **options)

    monkeypatch.setattr(MemoryReader, "__init__", slow)
    (leg,) = (leg for leg in LEGS if leg.name == "memory")
    assert measure.run_round(leg, small, Result(""), ignore).seconds < 0.4


# Bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("compare", "compare needs --datadir"),
        ("compare --datadir /does/not/exist", "No such file or directory: /does/not/exist"),
        ("compare --datadir EMPTY", "no files found"),
        ("--batches 0 compare --datadir DATA", "--batches: must be an integer from 1 to "),
        ("dali --seed 9223372036854775808 --datadir DATA", " to 9223372036854775807, not 92233"),
        ("compare --datadir DATA --legs dali,foo", "unknown leg 'foo'; known are dali, dali-no"),
        ("foo --datadir DATA", "python-file-direct"),
        ("dali --datadir DATA --json /does/not/exist/x", "--json: cannot write"),
        ("dali --datadir DATA --plot EMPTY", "--plot: cannot write"),
        ("demo --datadir DATA", "demo makes its own data"),
    ],
)
def test_bad_input_is_refused_before_any_measurement(
    arguments: str, said: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments.replace("DATA", str(data)).replace("EMPTY", str(tmp_path)).split()
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "round" not in shown.out + shown.err.replace("--rounds", "")
    assert not list(tmp_path.iterdir())


def test_cold_needs_root(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run("--cold", "dali", "--datadir", data) == 2
    assert "needs root" in capsys.readouterr().err


@pytest.mark.parametrize("option", [(), ("--decode",)])
def test_a_file_that_is_not_an_image_is_named(
    option: tuple[str, ...], tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.jpg").write_bytes((data / "train" / "c0" / "00.jpg").read_bytes())
    (tmp_path / "c" / "1.jpg").write_text("not an image")
    assert run("dali", "--datadir", tmp_path, *option, "--batchsize", 2) == 2
    assert f"{tmp_path}/c/1.jpg is not an image that fn." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "remedy"),
    [("rich", "dali-storage[bench]"), ("nvidia.dali", "dali-storage[cuda12]")],
)
def test_a_missing_package_is_named_with_its_remedy(package: str, remedy: str) -> None:
    script = f"import runpy, sys; sys.modules[{package!r}] = None; "
    script += "runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    with start(ROOT / "benchmark.py", "demo", program=["-c", script]) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 2
    assert remedy in log
    assert "Traceback" not in log


# The data set of the demo


def test_the_data_set_is_complete_and_reproducible(tmp_path: Path) -> None:
    train = Path(dataset.make(str(tmp_path), ignore, images=20))
    files = {path: path.read_bytes() for path in sorted(train.glob("*/*.jpg"))}
    assert train == tmp_path / "train"
    assert len(files) == len(set(files.values())) == 20
    assert len({path.parent for path in files}) == dataset.CLASSES
    assert all(40_000 <= len(contents) <= 180_000 for contents in files.values())
    made = train.stat().st_ino
    dataset.make(str(tmp_path), ignore, images=20)
    assert train.stat().st_ino == made
    next(iter(files)).unlink()
    dataset.make(str(tmp_path), ignore, images=20)
    assert {path: path.read_bytes() for path in sorted(train.glob("*/*.jpg"))} == files
    assert os.listdir(tmp_path) == ["train"]


def test_the_demo_deletes_no_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "demo" / "train" / "class_0" / "mine.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run("demo") == 2
    message = f"demo: cannot make 2000 images in {tmp_path}/demo: FileExistsError: there are other "
    assert f"{message}files than those of the demo: demo/train" in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_an_interrupted_data_set_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.make(str(tmp_path), interrupt, images=10)
    assert os.listdir(tmp_path) == []
