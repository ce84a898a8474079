"""Needs a GPU. Prints the figures that the tests measure; `--figures FILE` writes them as JSON."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import pytest

from dali_storage.contract import cuda
from dali_storage.contract.errors import BackendUnavailable

NOTHING_RAN = 2  # exit status


class Figure(NamedTuple):
    what: str
    value: float | str
    unit: str


FIGURES = pytest.StashKey[list[Figure]]()


def pytest_addoption(parser):
    parser.addoption("--gpu", type=int, default=0, metavar="N", help="which GPU to use")
    parser.addoption("--figures", metavar="FILE", help="write the figures to FILE, as JSON")


def pytest_configure(config):
    config.stash[FIGURES] = []
    config.addinivalue_line("filterwarnings", "default:::cupy")
    try:
        cuda.require(config.getoption("gpu"))
    except BackendUnavailable as missing:
        pytest.exit(f"nothing could run: {missing}", NOTHING_RAN)


@pytest.fixture(scope="session")
def gpu(request):
    """The number of the GPU."""
    return request.config.getoption("gpu")


@pytest.fixture(scope="session")
def measured(request):
    """Adds a figure to the table: what it is, its value and its unit."""
    figures = request.config.stash[FIGURES]
    return lambda what, value, unit: figures.append(Figure(what, value, unit))


def pytest_terminal_summary(terminalreporter, config):
    figures, machine = config.stash[FIGURES], describe(config.getoption("gpu"))
    left_out = {
        report.nodeid: report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])
    }
    terminalreporter.section("figures")
    terminalreporter.line(", ".join(f"{name} {value}" for name, value in machine.items()))
    for what, value, unit in figures:
        shown = (
            value if isinstance(value, str) else f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
        )
        terminalreporter.line(f"{what:<70} {shown:>14} {unit}")
    terminalreporter.line(f"left out: {len(left_out) or 'nothing'}")
    for test, why in left_out.items():
        terminalreporter.line(f"  {test}: {why}")
    if path := config.getoption("figures"):
        rows = [figure._asdict() for figure in figures]
        document = {"machine": machine, "figures": rows, "left_out": left_out}
        Path(path).write_text(json.dumps(document, indent=2) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and not reporter.stats.get("passed"):
        session.exitstatus = NOTHING_RAN


def describe(gpu):
    """The machine, as far as figures depend on it."""
    runtime = cuda.require(gpu).cuda.runtime
    return {
        "GPU": runtime.getDeviceProperties(gpu)["name"].decode(),
        "CUDA of the driver": runtime.driverGetVersion(),
        "CUDA runtime": runtime.runtimeGetVersion(),
        "processors": len(os.sched_getaffinity(0)),
        "Linux": platform.release(),
        "Python": platform.python_version(),
        "DALI": _version("nvidia-dali-cuda120", "nvidia-dali-cuda130"),
        "CuPy": _version("cupy-cuda12x", "cupy-cuda13x", "cupy"),
    }


def _version(*packages):
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "none"
