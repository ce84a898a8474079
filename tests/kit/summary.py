"""The last lines of a run: skipped promises by reason, and commands that repeat a failure."""

import shlex
import sys
from collections import Counter

import pytest

from tests.kit import tiers


def write(terminal: pytest.TerminalReporter) -> None:
    """Write them."""
    skipped = Counter(_reason(report) for report in terminal.stats.get("skipped", ()))
    if skipped:
        total = sum(skipped.values())
        terminal.write_sep("=", f"{total} promises were not checked here", yellow=True)
        for reason, number in skipped.most_common():
            terminal.write_line(f"{number:6}  {reason}")
    failed = terminal.stats.get("failed", []) + terminal.stats.get("error", [])
    if failed:
        terminal.write_sep("=", "to run them alone", red=True)
        for nodeid in dict.fromkeys(report.nodeid for report in failed):
            terminal.write_line(
                f"{sys.executable} -m pytest --tier {tiers.TIER} {shlex.quote(nodeid)}"
            )


def _reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
