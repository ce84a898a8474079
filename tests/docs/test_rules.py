"""The rules of CONTRIBUTING.md for tests, as far as the code shows whether they are kept."""

import ast
import re
from pathlib import Path

import pytest

from tests.kit.paths import ROOT

TESTS = ROOT / "tests"
HANG = 60  # seconds; a shorter wait breaks on a busy machine
WAITS = {"acquire", "check_call", "check_output", "communicate", "join", "result", "run", "wait"}
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}


def within(nodes, is_such):
    """The identities of all nodes below the nodes for which `is_such` holds."""
    return {id(part) for node in nodes if is_such(node) for part in ast.walk(node)}


def waits(nodes):
    """Line and seconds of each call that waits for a constant time and must not run out of it."""
    may_run_out = within(nodes, expects_it)
    for node in nodes:
        if not isinstance(node, ast.Call) or id(node) in may_run_out:
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        given = [word.value for word in node.keywords if word.arg == "timeout"]
        if name in {"join", "wait"}:
            given += node.args
        for value in given if name in WAITS else ():
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield node.lineno, value.value


def expects_it(node):
    """Whether a wait within this may run out: of `not wait()`, `suppress()` and `raises()`."""
    if isinstance(node, ast.With):
        text = " ".join(ast.unparse(item.context_expr) for item in node.items)
        return "suppress(" in text or "raises(" in text
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def runs_alone(node):
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return any(isinstance(each, ast.Name) and each.id == "alone" for each in decorators)


def compared_clocks(nodes):
    """The lines of assertions that compare the reading of a clock."""
    for node in nodes:
        if isinstance(node, ast.Assert):
            for call in ast.walk(node.test):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in CLOCKS:
                    yield node.lineno


def numbers_of_the_process(nodes):
    """The lines that count all threads or descriptors, which other tests change meanwhile.

    A test that runs `alone` may do that; others ask tests/kit/process.py for their part.
    """
    allowed = within(nodes, runs_alone)
    for node in nodes:
        if isinstance(node, ast.Call) and id(node) not in allowed:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            counts = name in {"enumerate", "active_count"} and "threading" in ast.unparse(node.func)
            looks = name in {"listdir", "scandir", "Path"} and node.args
            if counts or (looks and ast.unparse(node.args[0]).startswith("'/proc/self/")):
                yield node.lineno


SUSPECT = re.compile(
    r"timeout=\s*[\d.]|\.(join|wait)\([\d.]|threading|/proc/self/|\.(" + "|".join(CLOCKS) + r")\("
)
"""What a file has that breaks a rule; others need not be parsed."""


def broken_rules(source, *, kit=False):
    if not SUSPECT.search(source):
        return []
    nodes = [*ast.walk(ast.parse(source))]
    found = [
        f"{line}: {seconds} s may be too short on a busy machine; wait {HANG} s or longer"
        for line, seconds in waits(nodes)
        if seconds < HANG
    ]
    if not kit:
        found += [f"{line}: an assertion about a clock" for line in compared_clocks(nodes)]
        found += [
            f"{line}: a number of the whole process; ask tests/kit/process.py for your part of it"
            for line in numbers_of_the_process(nodes)
        ]
    return found


BROKEN = """\
thread.join(5)
event.wait(timeout=0.1)
subprocess.run(command, timeout=30)
assert time.monotonic() - began < 5
os.listdir('/proc/self/fd')
threading.active_count()"""
KEPT = """\
thread.join(60), '/'.join(parts), Reader(timeout=0.5)
with pytest.raises(TimeoutError): future.result(timeout=0.1)
while not event.wait(0.1): pass
until = time.monotonic() + 60"""


@pytest.mark.parametrize("line", BROKEN.split("\n"))
def test_a_broken_rule_of_a_test_is_found(line):
    assert broken_rules(line)
    if "active_count" in line:
        assert not broken_rules(f"@alone\ndef test():\n    {line}")


def test_what_keeps_the_rules_is_allowed():
    assert not broken_rules(KEPT)


def test_no_test_breaks_the_rules():
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS)
        if name.parts[0] not in ("gpu", "image", "nvme_vm") and path != Path(__file__):
            rules = broken_rules(path.read_text(), kit=name.parts[0] == "kit")
            found += [f"tests/{name}:{each}" for each in rules]
    assert not found, "\n".join(found)


def test_the_folders_of_tests_are_those_of_the_product():
    others = {"benchmarks", "distributed", "docs", "frameworks", "gpu", "image", "kit", "nvme_vm"}
    others |= {"packaging"}
    folders = [path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    for folder in {each for each in folders if each.parts[0] not in others}:
        homes = [ROOT / folder, ROOT / "dali_storage" / folder]
        assert any(home.is_dir() for home in homes), f"tests/{folder} mirrors no folder"
