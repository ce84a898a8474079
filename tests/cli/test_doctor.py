"""What `python -m dali_storage` prints."""

import json
import math
import sys
from importlib.metadata import EntryPoint

import pytest

import dali_storage
from dali_storage.backends.memory import MemoryReader
from dali_storage.cli import doctor
from dali_storage.contract import registry
from dali_storage.contract.devices import DeviceStatus
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.contract.families import COMMANDS
from dali_storage.dali import compat
from dali_storage.runtime import machine

HELP = "get it from the shelf, or build it"


def backend(*devices, unavailable=None):
    """A backend that gives these answers."""

    class Answers(MemoryReader):
        @classmethod
        def devices(cls):
            return [*devices]

        @classmethod
        def unavailable(cls):
            return unavailable

    return Answers


PROBLEM = BackendUnavailable("no library of that name", HELP)
DISKS = DeviceStatus("/dev/one", "disk"), DeviceStatus("/dev/two", "disk", PROBLEM)
Works = backend(*DISKS)
Lacks = backend(*DISKS, DeviceStatus("0:0", "controller"), unavailable=PROBLEM)
SaysText = backend(unavailable="just text")
ExplainsWithObjects = backend(unavailable=BackendUnavailable(OSError("as an object"), 3))
ListsText = backend("/dev/sda")


class Fails(MemoryReader):
    @classmethod
    def devices(cls):
        raise ZeroDivisionError("no devices by zero")


@pytest.fixture
def offer(monkeypatch):
    """Makes these the only backends: name = name here, or "module:attribute"."""

    def make(**backends):
        points = [
            EntryPoint(name, found if ":" in found else f"{__name__}:{found}", registry.GROUP)
            for name, found in backends.items()
        ]
        monkeypatch.setattr(registry, "_entry_points", lambda: points)

    return make


@pytest.fixture(autouse=True)
def quota(monkeypatch):
    """Sets the quota of this process, which may use three processors."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {2, 4, 5})
    set_to = lambda quota: monkeypatch.setattr(machine, "quota", lambda: quota)  # noqa: E731
    set_to(math.inf)
    return set_to


def report(capsys):
    status = doctor.main(["--json"])
    return status, json.loads(capsys.readouterr().out)


def reason_and_remedy(capsys):
    status, printed = report(capsys)
    (backend,) = printed["backends"]
    assert (status, backend["works"]) == (1, False)
    return backend["reason"], backend["remedy"]


def test_the_json_of_the_doctor_has_every_backend_and_every_device_once(offer, capsys):
    offer(good="Works", lacking="Lacks")
    no = {"works": False, "reason": "no library of that name", "remedy": HELP}
    yes = {"works": True, "reason": None, "remedy": None}
    both = {"kind": "disk", "backends": ["good", "lacking"]}
    status, printed = report(capsys)
    assert status == 0
    assert printed["backends"] == [{"name": "good", **yes}, {"name": "lacking", **no}]
    assert printed["devices"] == [
        {"name": "/dev/one", **both, **yes},
        {"name": "/dev/two", **both, **no},
        {"name": "0:0", "kind": "controller", "backends": ["lacking"], **yes},
    ]


def test_the_doctor_says_which_features_need_another_dali(offer, capsys, monkeypatch):
    offer(good="Works")
    monkeypatch.setattr(compat, "has", lambda least: least <= (2, 2))
    dali, *features = report(capsys)[1]["dali"]
    assert (dali["name"], dali["works"]) == (f"DALI {compat.VERSION}", True)
    works = {row["since"]: row["works"] for row in features}
    assert works == {"1.53": True, "2.0": True, "2.2": True, "2.3": False}
    monkeypatch.setitem(sys.modules, "dali_storage.dali", None)
    (row,) = report(capsys)[1]["dali"]
    assert (row["name"], row["works"]) == ("DALI", False)
    assert "dali_storage.dali" in row["reason"]


def test_the_rows_of_the_doctor_fit_a_narrow_terminal_and_have_each_problem_once(
    offer, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "60")
    offer(a="Lacks", b="Works", c="Lacks")
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.splitlines()[:13] == [
        "backends:",
        "does not work   a, c: no library of that name; get it from",
        "                the shelf, or build it",
        "works           b",
        "",
        "devices:",
        "works           /dev/one (disk, a, b, c)",
        "does not work   /dev/two (disk, a, b, c): no library of that",
        "                name; get it from the shelf, or build it",
        "works           0:0 (controller, a, c)",
        "",
        "dali:",
        f"works           DALI {compat.VERSION}",
    ]


@pytest.mark.parametrize(("limit", "quoted", "used"), [(math.inf, None, 3), (8, 8, 3), (1, 1, 1)])
def test_the_doctor_tells_the_processors_that_are_used_and_what_limits_them(
    offer, capsys, quota, limit, quoted, used
):
    quota(limit)
    offer(good="Works")
    assert report(capsys)[1]["processors"] == {"affinity": 3, "quota": quoted, "used": used}
    doctor.main([])
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == f"processors      {used} (affinity: 3, CPU quota: {quoted or 'none'})"


def test_help_names_the_commands_and_a_wrong_one_has_a_suggestion(capsys):
    for given, status, said in (
        (["--help"], 0, "prove     compare our reader with DALI's on your data"),
        (["--version"], 0, f"dali_storage {dali_storage.__version__}"),
        (["indx"], 2, "unknown command 'indx'; did you mean index?"),
        (["nope"], 2, f"'nope' is neither a command nor a file\ncommands: {', '.join(COMMANDS)}"),
        (["--json", "."], 2, "--json is not for DATA"),
        (["a.tar", "."], 2, "give one directory or URL, or several containers"),
    ):
        with pytest.raises(SystemExit) as caught:
            doctor.main(given)
        assert caught.value.code == status
        printed = "".join(capsys.readouterr())
        assert said in printed
        assert max(map(len, printed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("source", "reason", "remedy"),
    [
        ("import no_such_package_of_theirs", "needs the package no_such_package_of_theirs",
         "pip install no_such_package_of_theirs"),
        ("import nvidia.dali", "", "[cuda12]'"),  # its package has another name
        ("import dali_storage.reader_typo", "No module named 'dali_storage.reader_typo'", ""),
        ("import numpy.no_such_module", "No module named 'numpy.no_such_module'", ""),
        ("from dali_storage import Raeder", "ImportError: cannot import name 'Raeder'", ""),
        ("def broken(:", "SyntaxError: invalid syntax", ""),
        ("1 / 0", "ZeroDivisionError: division by zero", ""),
        ("raise SystemExit('bye')", "SystemExit: bye", ""),
        ("Y = 5", "has no attribute 'X'", ""),
        ("X = 5", "is not a subclass of dali_storage.Reader", ""),
        (None, "No module named 'plug_in", ""),  # the module of the plug-in itself
    ],
)  # fmt: skip
def test_a_broken_plug_in_is_reported_as_what_it_is(
    offer, capsys, monkeypatch,
    tmp_path, source, reason, remedy
):  # fmt: skip
    name = f"plug_in_{tmp_path.name}"
    monkeypatch.syspath_prepend(tmp_path)
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    if remedy == "[cuda12]'":
        monkeypatch.setitem(sys.modules, "nvidia", None)
    offer(plug=f"{name}:X")
    printed = reason_and_remedy(capsys)
    assert reason in printed[0]
    if remedy.startswith("pip "):
        assert remedy == printed[1]
    elif remedy:
        assert remedy in printed[1]
    else:
        assert f"entry point {name}:X" in printed[0] or source is None or "SystemExit" in reason
        assert "pip install" not in "".join(printed)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ("SaysText", "must return BackendUnavailable or None, not 'just text'"),
        ("ExplainsWithObjects", "as an object"),
        ("ListsText", "must return DeviceStatus objects, not '/dev/sda'"),
        ("Fails", "by zero"),
    ],
)
def test_a_wrong_answer_of_a_plug_in_is_its_own_error(offer, capsys, answers, error):
    offer(plug=answers)
    assert error in reason_and_remedy(capsys)[0]
