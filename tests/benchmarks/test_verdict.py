"""The line of the verdict, and the warnings of figures that are not to be trusted."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import environment, verdict
from benchmarks.legs import PYTHON_FILE, REFERENCE
from benchmarks.measure import Result, Round
from benchmarks.verdict import Comparison
from benchmarks.workload import Settings


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
    settings = Settings(cold=title == "cold", seed=1)
    few = SimpleNamespace(settings=settings, catalog=range(4095))
    return Comparison(title, [PYTHON_FILE, REFERENCE], few, results)


def test_the_verdict_is_the_median_of_the_ratios_to_the_better_mode_in_neighbouring_turns():
    # 30/10, 50/25 and 40/40; the ratio of the medians is 40/25.
    hot = comparison("hot", ours=[30, 50, 40], theirs=[10, 25, 40], mapped=[20, 10, 30])
    slow = comparison("1 ms a request", ours=[123.4], theirs=[10])
    alone = comparison("cold", ours=[10])
    rows = verdict.untuned([hot, slow, alone])
    assert {name: row["ratio"] for name, row in rows.items()} == {
        "hot": pytest.approx(2),
        "1 ms a request": pytest.approx(12.34),
    }
    said = verdict.verdict({name: row["ratio"] for name, row in rows.items()})
    assert said == "no options: 2.0x hot, 12x 1 ms a request"
    assert verdict.verdict({}) == "no options: not measured"
    assert [*map(verdict.times, (0.0688, 1.0, 0.996, 123.4))] == ["0.069x", "1.0x", "1.0x", "120x"]


def test_a_busy_machine_and_halves_that_differ_are_named_with_how_much():
    quiet = comparison("hot", ours=[90, 110, 100, 108], theirs=[100] * 4)
    assert verdict.warnings_of({"at the start": 0.05}, [quiet]) == []
    spread = comparison("cold", ours=[100, 100, 140, 160], theirs=[100] * 4)
    busy, halves, few = verdict.warnings_of({"during the run": 0.25}, [quiet, spread])
    assert "others took 25% of its processors during the run" in busy
    assert "the two halves of the run differ: cold python-file by 50%: repeat" in halves
    assert "cold: the filling of DALI's shuffle buffer decides: an epoch has 4,095 samples" in few


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
