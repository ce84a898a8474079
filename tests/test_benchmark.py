"""benchmark.py measures the right things, and refuses bad input before it measures."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

import benchmark
from benchmarks import (
    command,
    dataset,
    environment,
    legs,
    measure,
    pipelines,
    report,
    verify,
    workload,
)
from benchmarks.legs import LEGS, Backend, Leg
from benchmarks.measure import Result, Round
from benchmarks.workload import Settings, Workload
from dali_storage.reading.lanes import spare_processors

from .conftest import started
from .pictures import IMAGES, make_pictures

ROOT = Path(__file__).resolve().parent.parent
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
    *arguments: object, program: Sequence[str] = ()
) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, *(program or [str(ROOT / "benchmark.py")]), *arguments]
    return started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


# Commands


def test_compare_measures_every_leg(data: Path, tmp_path: Path) -> None:
    kept, picture = tmp_path / "result.json", tmp_path / "result.png"
    options = "--json", kept, "--plot", picture
    command = "--batchsize", 8, "compare", "--datadir", data, "--verify", "--rounds", 2, *options
    with start(*command) as process:
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
            assert one["samples"] == IMAGES
            assert one["bytes"] == sum(sizes_bytes(data))
            assert len(one["waits_seconds"]) == 3
            assert 0 < sum(one["waits_seconds"]) <= one["seconds"]
        speeds = [one["samples"] / one["seconds"] for one in leg["rounds"]]
        assert leg["summary"]["img_per_s"] == pytest.approx(np.median(speeds))
        assert leg["summary"]["img_per_s_min"] == pytest.approx(min(speeds))
    assert [name for name in NAMES if document["legs"][name]["skipped"] is None][:2] == NAMES[:2]
    assert document["settings"]["batch_size"] == 8
    assert document["environment"]["page_cache"] == "hot"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["dali", "python-file"])
def test_options_may_precede_or_follow_the_command_of_a_single_leg(
    name: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    status = run("--batchsize", 4, "--batches", 9, "--json", kept, name, "--datadir", data)
    assert status == 0
    shown = capsys.readouterr()
    assert name in shown.out
    assert re.search(rf"round 1/1 {name}: [\d,]+ img/s", shown.err)
    (one,) = json.loads(kept.read_text())["legs"][name]["rounds"]
    assert one["samples"] == 36  # one and a half epochs
    assert one["bytes"] == sum(sizes_bytes(data)) + sum(sizes_bytes(data)[:12])


def test_an_epoch_of_incomplete_batches_counts_what_is_delivered(
    data: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "result.json"
    arguments = ("compare", "--datadir", data, "--legs", "dali,naive", "--batchsize", 5)
    assert run(*arguments, "--rounds", 1, "--json", kept) == 0
    for leg in json.loads(kept.read_text())["legs"].values():
        assert leg["rounds"][0]["samples"] == 25
        assert leg["rounds"][0]["bytes"] == sum(sizes_bytes(data)) + sizes_bytes(data)[0]


@pytest.mark.parametrize("given", [(), ("--copying-lanes", 2)])
def test_the_lanes_of_every_leg_are_reported(
    given: tuple[object, ...], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "result.json"
    arguments = ("compare", "--datadir", data, "--legs", "dali,python-file,memory", "--rounds", 1)
    assert run(*arguments, "--threads", 1, "--json", kept, *given) == 0
    legs = json.loads(kept.read_text())["legs"]
    lanes = {name: (leg["copying_lanes"], leg["lanes"]) for name, leg in legs.items()}
    spare = spare_processors(1)
    count = lanes["python-file"][1]
    assert lanes["dali"] == (None, None)
    assert lanes["memory"] == (1, 1)
    assert {name: leg["memory"] for name, leg in legs.items()} == {
        "dali": None,
        "python-file": "cpu",
        "memory": "cpu",
    }
    assert lanes["python-file"][0] == min(given[-1] if given else spare, count)
    shown = f"lanes, copying at once/all: python-file {lanes['python-file'][0]}/{count}, memory 1/1"
    assert shown in capsys.readouterr().out


def test_all_legs_read_in_the_same_shuffled_order(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("compare", "--datadir", data, "--rounds", 1, "--batches", 2, "--batchsize", 7)
    assert run(*arguments, "--seed", 7, "--verify") == 0
    assert capsys.readouterr().err.count("the same as fn.readers.file") >= 5
    shuffled = workload.prepare(str(data), Settings(batch_size=7, seed=7)).order
    assert sorted(set(shuffled.ravel().tolist())) == list(range(IMAGES))
    assert shuffled.ravel()[:IMAGES].tolist() != list(range(IMAGES))


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

    return Leg("altered", "", read)


@pytest.mark.parametrize(
    ("what", "said"),
    [("byte", "bytes: .* at 11"), ("length", "bytes: uint8"), ("label", "label: 2 instead of 1")],
)
def test_verification_finds_the_only_wrong_sample(what: str, said: str, small: Workload) -> None:
    (difference,) = verify.differences(altered(what, 13), small, ignore)
    assert re.fullmatch(rf"sample 13, .*/c1/13\.jpg: {said}.*", difference)


def test_a_leg_that_differs_fails_and_is_not_timed(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LEGS", (LEGS[0], altered("byte", 3)))
    assert run("compare", "--datadir", data, "--batchsize", 5, "--rounds", 1, "--verify") == 1
    shown = capsys.readouterr()
    assert "altered: sample 3, " in shown.err
    assert "1 differences from fn.readers.file" in shown.out
    assert "round 1/1 altered" not in shown.err


def test_verification_of_a_correct_leg_finds_nothing(small: Workload) -> None:
    assert list(verify.differences(altered("nothing", 0), small, ignore)) == []


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

    chosen = (Leg("broken", "", fail), LEGS[0])
    results = {leg.name: Result(leg.name) for leg in chosen}
    measure.measure(chosen, small, results)
    assert results["broken"].failed == "PermissionError: Permission denied: /dev/nvme0n1"
    assert len(results["dali"].rounds) == 2


def test_a_backend_that_is_not_installed_is_a_reason(small: Workload) -> None:
    backend = Backend("no-such-backend")
    leg = Leg("future", "", backend.read, backend.unavailable)
    reason = leg.unsupported_reason(small)
    assert str(reason).startswith("unknown backend 'no-such-backend'; known are block, ")


# Figures


def fake_round(img_per_s: float) -> Round:
    return Round(
        seconds=100 / img_per_s,
        cpu_seconds=3.0,
        samples=100,
        size_bytes=2 * 10**9,
        waits=np.array([0.001] * 99 + [1.0]),
    )


def test_figures() -> None:
    speeds = {"dali": [10, 20, 30], "dali-nommap": [20, 10, 40], "other": [30, 50, 40]}
    results = {name: Result(name, [*map(fake_round, speeds[name])]) for name in speeds}
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
    assert other["wait_p50_ms"] == pytest.approx(1)
    assert other["wait_p99_ms"] > 1
    assert "ratio" not in measure.summarize({"other": results["other"]})["other"]


def test_the_order_of_the_legs_rotates(small: Workload, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["memory", "dali", "dali-nommap"]
    results = {name: Result(name) for name in names}
    results["memory"].skipped = "so that its turns are those of the others"
    chosen = [leg for name in names for leg in LEGS if leg.name == name]
    settings = replace(small.settings, rounds=3)
    measure.measure(chosen, replace(small, order=small.order[:1], settings=settings), results)
    turns = re.findall(r"round \d/3 (\S+):", capsys.readouterr().err)
    assert turns == ["dali", "dali-nommap", "dali-nommap", "dali", "dali", "dali-nommap"]


def test_no_round_is_measured_if_no_leg_runs(small: Workload) -> None:
    results = {"dali": Result("dali", failed="because")}
    measure.measure(LEGS[:1], small, results)
    assert results["dali"].rounds == []


def test_the_file_system_is_that_of_the_directory() -> None:
    assert environment.file_system_type("/proc/self") == "proc"


# Bad input


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("compare", "compare needs --datadir"),
        ("compare --datadir /does/not/exist", "No such file or directory: /does/not/exist"),
        ("compare --datadir EMPTY", "no files found"),
        ("--batches 0 compare --datadir DATA", "--batches: must be an integer from 1 to "),
        ("--batchsize x compare --datadir DATA", " to 2147483647, not x"),
        ("compare --rounds -1 --datadir DATA", "--rounds: must be an integer from 1 to "),
        ("dali --threads 2147483648 --datadir DATA", " to 2147483647, not 2147483648"),
        ("dali --seed 9223372036854775808 --datadir DATA", " to 9223372036854775807, not 92233"),
        (
            "compare --datadir DATA --legs dali,foo",
            "unknown leg 'foo'; known are dali, dali-nommap",
        ),
        ("foo --datadir DATA", "python-file-direct"),
        ("dali --datadir DATA --json /does/not/exist/x", "--json: cannot write"),
        ("dali --datadir DATA --plot EMPTY", "--plot: cannot write"),
        ("demo --datadir DATA", "demo makes its own data"),
    ],
)
def test_bad_input_is_refused_before_any_measurement(
    arguments: str,
    said: str,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = arguments.replace("DATA", str(data)).replace("EMPTY", str(tmp_path)).split()
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert "round" not in shown.out + shown.err.replace("--rounds", "")


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


def test_demo_needs_a_working_directory_that_it_can_write_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("not a directory")
    assert run("demo") == 2
    assert f"demo: cannot make 2000 images in {tmp_path}/demo: " in capsys.readouterr().err


def test_refusing_leaves_no_file_behind(data: Path, tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    report.check_outputs(str(kept), None)
    assert not kept.exists()


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


def test_the_demo_is_large_enough() -> None:
    assert dataset.IMAGES >= 1000
    assert (dataset.SMALLEST_BYTES, dataset.LARGEST_BYTES) == (40_000, 180_000)


def test_the_data_set_is_complete_and_reproducible(tmp_path: Path) -> None:
    train = Path(dataset.make(str(tmp_path), ignore, images=20))
    files = {path: path.read_bytes() for path in sorted(train.glob("*/*.jpg"))}
    assert train == tmp_path / "train"
    assert len(files) == len(set(files.values())) == 20
    assert len({path.parent for path in files}) == dataset.CLASSES
    assert all(40_000 <= len(contents) <= 180_000 for contents in files.values())
    next(iter(files)).unlink()
    dataset.make(str(tmp_path), ignore, images=20)
    assert {path: path.read_bytes() for path in sorted(train.glob("*/*.jpg"))} == files
    assert os.listdir(tmp_path) == ["train"]


def test_a_complete_data_set_is_left_alone(tmp_path: Path) -> None:
    train = Path(dataset.make(str(tmp_path), ignore, images=10))
    made = train.stat().st_ino
    dataset.make(str(tmp_path), ignore, images=10)
    assert train.stat().st_ino == made


def test_files_of_the_user_are_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "demo" / "train" / "class_0" / "mine.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert run("demo") == 2
    message = "FileExistsError: there are other files than those of the demo: demo/train"
    assert message in capsys.readouterr().err
    assert mine.read_text() == "mine"


def test_an_interrupted_data_set_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dataset.make(str(tmp_path), interrupt, images=10)
    assert os.listdir(tmp_path) == []
