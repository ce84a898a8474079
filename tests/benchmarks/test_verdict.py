"""The line of the verdict, and the warnings of a machine that is not quiet."""

import os

import numpy as np
import pytest

from benchmarks import environment, verdict
from benchmarks.legs import PYTHON_FILE, REFERENCE
from benchmarks.measure import Result, Round
from benchmarks.verdict import Comparison


def rounds(*speeds):
    """Rounds of 100 images, with 1 ms of CPU time each."""
    return [Round(100 / speed, 0.1, 100, 10**6, np.zeros(1)) for speed in speeds]


def comparison(title, **speeds):
    names = {"ours": PYTHON_FILE.name, "theirs": REFERENCE.name, "mapped": "dali"}
    baselines = ("dali", "dali-nommap")
    results = {
        names[key]: Result(names[key], rounds(*its), baselines=baselines)
        for key, its in speeds.items()
    }
    return Comparison(title, [PYTHON_FILE, REFERENCE], None, results)


def test_the_verdict_is_the_median_of_the_ratios_to_the_better_mode_in_each_round():
    # 30/20, 50/25 and 40/40; the ratio of the medians is 40/25.
    hot = comparison("hot", ours=[30, 50, 40], theirs=[10, 25, 40], mapped=[20, 10, 30])
    slow = comparison("1 ms a request", ours=[123.4], theirs=[10])
    alone = comparison("cold", ours=[10])
    rows = verdict.untuned([hot, slow, alone])
    assert {name: row["ratio"] for name, row in rows.items()} == {
        "hot": pytest.approx(1.5),
        "1 ms a request": pytest.approx(12.34),
    }
    said = verdict.verdict({name: row["ratio"] for name, row in rows.items()})
    assert said == "no options: 1.5x hot, 12x 1 ms a request"
    assert verdict.verdict({}) == "no options: not measured"
    assert [*map(verdict.times, (0.0688, 1.0, 0.996, 123.4))] == ["0.069x", "1.0x", "1.0x", "120x"]


def test_a_busy_machine_and_rounds_that_spread_are_named_with_how_much():
    quiet = comparison("hot", ours=[90, 100, 119], theirs=[100, 100, 100])
    assert verdict.warnings_of({"at the start": 0.05}, [quiet]) == []
    spread = comparison("cold", ours=[80, 100, 130], theirs=[100, 100, 100])
    busy, rounds = verdict.warnings_of({"during the run": 0.25}, [quiet, spread])
    assert "others took 25% of its processors during the run" in busy
    assert "rounds spread, of their median: cold python-file by 50%: repeat" in rounds


def test_the_processors_of_others_are_all_but_ours(tmp_path, monkeypatch):
    """100 ticks a second: user 400, nice 100 and stolen 50; 200 and, of a child, 30 are ours."""
    files = {
        "/proc/stat": "cpu 400 100 9999 9999 9999 9999 9999 50 9999 0\n",
        "/proc/self/task/1/children": "77 ",
        "/proc/77/stat": "77 (a ) b) S " + " ".join(map(str, range(2, 12))) + " 30 9999\n",
    }
    for name, text in files.items():
        path = tmp_path / name[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(environment, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "times", lambda: os.times_result((1.5, 99, 0.5, 99, 99)))
    now, taken = environment.cpu_of_others()
    assert taken == pytest.approx((400 + 100 + 50 - 30) / 100 - 2)
    monkeypatch.setattr(environment.time, "monotonic", lambda: now + 2)
    assert environment.busy_share((now, taken - 1)) == pytest.approx(0.25)  # 1 s of 2 * 2
