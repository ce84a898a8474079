"""Needs a GPU. Prints the figures that the tests measure; `--junitxml=FILE` writes them, too."""

import os
import platform
from importlib.metadata import distributions

import pytest

from dali_storage.contract.errors import BackendUnavailable
from dali_storage.runtime import cuda

NOTHING_RAN = 2  # exit status


def pytest_addoption(parser):
    parser.addoption("--gpu", type=int, default=0, metavar="N", help="which GPU to use")


def pytest_configure(config):
    config.option.reportchars += "s"  # why tests were left out
    config.addinivalue_line("filterwarnings", "default:::cupy")
    try:
        cuda.require(config.getoption("gpu"))
    except BackendUnavailable as missing:
        pytest.exit(f"nothing could run: {missing}", NOTHING_RAN)


@pytest.fixture(scope="session", autouse=True)
def gpu(request, record_testsuite_property):
    """The number of the GPU."""
    for name, value in describe(request.config.getoption("gpu")).items():
        record_testsuite_property(name, value)
    return request.config.getoption("gpu")


@pytest.fixture
def measured(request):
    """Adds a figure to the table: what it is, its value and its unit."""

    def measured(what, value, unit):
        shown = f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"
        request.node.user_properties.append((what, f"{shown} {unit}"))

    return measured


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.section("figures")
    machine = describe(config.getoption("gpu"))
    terminalreporter.line(", ".join(f"{name} {value}" for name, value in machine.items()))
    stats = terminalreporter.stats
    for report in [*stats.get("passed", []), *stats.get("failed", [])]:
        for what, value in report.user_properties:
            terminalreporter.line(f"{what:<70} {value:>20}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus == 0 and not reporter.stats.get("passed"):
        session.exitstatus = NOTHING_RAN


def describe(gpu):
    """The machine, as far as figures depend on it."""
    runtime = cuda.require(gpu).cuda.runtime
    packages = {each.name: each.version for each in distributions()}
    return {
        "GPU": runtime.getDeviceProperties(gpu)["name"].decode(),
        "CUDA of the driver": runtime.driverGetVersion(),
        "CUDA runtime": runtime.runtimeGetVersion(),
        "processors": len(os.sched_getaffinity(0)),
        "Linux": platform.release(),
        "Python": platform.python_version(),
        **{name: packages[name] for name in packages if name.startswith(("cupy", "nvidia-dali"))},
    }
