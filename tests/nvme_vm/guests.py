"""What the guest runs, as the host says it."""

from __future__ import annotations

import sys
from pathlib import Path

from .machine import Machine

TIMEOUT = 240.0  # seconds; most take 10 to 30, on a busy computer

_GUEST = Path(__file__).with_name("guest")


def guest_tests(*modules: str, **environment: str) -> list[str]:
    """The command that runs modules of the guest's tests, without pytest plugins or traces."""
    return [
        *("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"),
        *(f"{name}={value}" for name, value in environment.items()),
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("--basetemp=/run/pytest", f"--confcutdir={_GUEST}"),
        *(str(_GUEST / f"{module}.py") for module in modules),
    ]


def run(machine: Machine, command: list[str]) -> None:
    """Run a command that must succeed."""
    done = machine.run(command, TIMEOUT)
    assert done.returncode == 0, done.output
