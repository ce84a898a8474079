"""The tables that make figures writes into docs/benchmarks.md."""

import re

import pytest

from benchmarks import arguments, figures

SUMMARY = {"img_per_s": 1234.4, "cpu_s_per_gb": 0.5}
RATIOS = {"ratio": 1.0, "ratio_q1": 0.9, "ratio_q3": 1.2, "cpu_ratio": 0.5}
MEASURED = {
    "environment": {
        "time": "2026-01-02T03:04:05+00:00",
        "cpu": "Some CPU",
        "cores": 2,
        "kernel": "6.1.2-some",
        "file_system": "ext4",
        "python": "3.11.7",
        "dali": "2.4.0",
        "busy": {"at the start": 0.01, "during the run": 0.031},
    },
    "settings": {"rounds": 5, "batch_size": 64, "threads": 2},
    "readers": {
        "dali": {"summary": SUMMARY | {"ratio": 1.0, "ratio_q1": 0.9, "ratio_q3": 1.2}},
        "block": {"summary": None},
        "memory": {"summary": SUMMARY | {"cpu_s_per_gb": 0.25}},
    },
}


def test_a_table_has_its_date_machine_and_command_and_the_legs_that_ran():
    table = figures.table(MEASURED, ["compare", "--cold"])
    head, _, columns, line, *rows = table.splitlines()
    assert head.startswith("2026-01-02, ")
    assert " Some CPU, 2 cores, of which other programs took 3%, Linux 6.1.2, ext4; " in head
    assert "`python benchmark.py compare --cold`: 5 rounds" in head
    assert columns == "| reader | images/s | CPU s/GB | x dali | quartiles | CPU x |"
    assert line == "|---|---|---|---|---|---|"
    assert rows == [
        "| `dali` | 1,234 | 0.50 | 1.00 | 0.90 to 1.20 | - |",
        "| `memory` | 1,234 | 0.25 | - | - | - |",
    ]


def test_the_first_table_has_the_readers_of_each_situation_that_ran():
    measured = {"situations": {"hot": MEASURED | {"readers": {"decoded": {"summary": RATIOS}}}}}
    *_, columns, _, row = figures.gains(measured, ["compare"]).splitlines()
    assert columns == "| situation | option | x | quartiles | CPU x |"
    assert row == "| hot, files | nothing, decoded on the CPU | 1.00 | 0.90 to 1.20 | 0.50 |"


def test_only_the_table_of_that_name_is_replaced():
    page = "".join(f"<!-- figures: {it} -->\nold\n<!-- end of figures -->\nmore\n" for it in "ab")
    expected = page[::-1].replace("dlo", "wen", 1)[::-1]
    assert figures.replaced(page, "b", "new\n") == expected
    with pytest.raises(ValueError, match="no line <!-- figures: c -->"):
        figures.replaced(page, "c", "new\n")


def test_every_table_of_the_page_has_a_command_that_is_accepted():
    names = re.findall("<!-- figures: (.+) -->", figures.PAGE.read_text())
    assert sorted(names) == sorted(figures.RUNS)
    for command in figures.RUNS.values():
        arguments.parser().parse_args(command.split())
