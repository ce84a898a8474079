"""Commands for the guest."""

import sys
from pathlib import Path

from tests.nvme_vm import plan
from tests.nvme_vm.machine import Machine

TIMEOUT = 1800.0  # seconds; most take 10 to 30, the longest 170, on a busy computer

_GUEST = Path(__file__).with_name("guest")


def guest_tests(*modules: str, **environment: str) -> list[str]:
    """The command that runs test modules of the guest, without pytest plugins or caches."""
    return [
        *("env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1"),
        *(f"{name}={value}" for name, value in environment.items()),
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp=/run/pytest"),
        *("-p", f"{__package__}.guest.fixtures", f"--confcutdir={_GUEST}"),
        "-Wignore::dali_storage.contract.errors.MapNotChecked",
        *(str(_GUEST / f"{module}.py") for module in modules),
    ]


def run(machine: Machine, command: list[str]) -> None:
    """Run a command that must succeed."""
    done = machine.run(command, TIMEOUT)
    assert done.returncode == 0, done.stdout


def run_and_take_out(machine: Machine, command: list[str], count: int) -> None:
    """Run a command that must succeed, and remove `count` controllers when it asks for that."""
    for number in range(count):  # left by an earlier run
        (machine.directory / f"{plan.READING}{number}").unlink(missing_ok=True)
    with machine.boot(command) as running:
        for number in range(count):
            running.wait_for(f"{plan.READING}{number}", TIMEOUT)
            running.take_out(number)
        done = running.wait(TIMEOUT)
    assert done.returncode == 0, done.stdout
