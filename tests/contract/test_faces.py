"""Packages that hold names: `dali_storage` and `dali_storage.readers`."""

import subprocess
import sys

import pytest

import dali_storage
from dali_storage import loaders, readers
from tests.kit.paths import ROOT


def run(program):
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("face", [dali_storage, loaders, readers], ids=lambda face: face.__name__)
def test_names_are_listed_imported_and_proposed(face):
    names = face.__all__
    program = (
        f"import {face.__name__} as face, sys\n"
        f"assert {{*{names}}} <= {{*dir(face)}}\n"
        "assert not [it for it in sys.modules if it.startswith('nvidia')]\n"
        f"from {face.__name__} import *\n"
        f"assert all(getattr(face, name) is globals()[name] for name in {names})\n"
        f"face.{names[-1][:-1]}"
    )
    done = run(program)
    assert f"AttributeError: module {face.__name__!r} has no attribute" in done.stderr
    assert f"Did you mean: {names[-1]!r}?" in done.stderr


def test_the_import_of_a_module_does_not_hide_the_function_of_its_name():
    program = (
        "import dali_storage.readers.coco as module\n"
        "from dali_storage import readers\n"
        "assert callable(readers.coco) and readers.coco is module"
    )
    assert run(program).stderr == ""


def test_a_use_that_failed_is_tried_again():
    """As after a Ctrl-C in the middle of the import."""
    program = (
        "import sys; from dali_storage import readers\n"
        "sys.modules['nvidia'] = None\n"
        "try: readers.sequence\n"
        "except ModuleNotFoundError as error: print(error)\n"
        "del sys.modules['nvidia']; print(readers.sequence.__name__)"
    )
    told, name = run(program).stdout.splitlines()
    assert "needs NVIDIA DALI, which is not installed: pip install" in told
    assert name == "sequence"


def test_two_threads_may_use_a_name_first_at_the_same_time():
    program = (
        "from concurrent.futures import ThreadPoolExecutor; from dali_storage import readers\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = {*pool.map(lambda n: getattr(readers, n), ['file', 'tfrecord', 'mix'] * 8)}\n"
        "print(len(found))"
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.long
def test_type_checkers_know_every_name(tmp_path):
    program = tmp_path / "program.py"
    uses = [f"{face.__name__}.{it}" for face in (dali_storage, readers) for it in face.__all__]
    lines = "".join(f"print({it})\n" for it in uses)
    program.write_text(f"import dali_storage\nimport dali_storage.readers\n{lines}")
    command = [sys.executable, "-m", "mypy", "--strict", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    program.write_text("import dali_storage\ndali_storage.statistcs\n")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert 'has no attribute "statistcs"' in done.stdout
