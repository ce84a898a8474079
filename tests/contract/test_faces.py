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


HIDDEN = """
import pydoc, sys
import dali_storage
from dali_storage import loaders, ops, readers

class Hides:
    def find_spec(self, name, *_):
        if name == {name!r}:
            raise {error}

sys.meta_path.insert(0, hides := Hides())
"""


def without(name, program, error="ModuleNotFoundError(name, name=name)"):
    """What a program prints where the import of a module fails."""
    done = run(HIDDEN.format(name=name, error=error) + program)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("module", ["dali.group", "formats.tar.archive", "readers.webdataset"])
def test_after_a_ctrl_c_in_the_middle_of_an_import_the_next_use_works(module):
    program = (
        "try: readers.webdataset, readers.state\n"
        "except KeyboardInterrupt: sys.meta_path.remove(hides)\n"
        "print(readers.webdataset.__name__, readers.state.__name__)"
    )
    told = without(f"dali_storage.{module}", program, "KeyboardInterrupt")
    assert told == ["webdataset state"]


@pytest.mark.parametrize(
    ("module", "gone"), [("dali_storage.formats.tar", "webdataset"), ("nvidia.dali", "state")]
)
def test_what_is_missing_is_not_listed_and_all_else_is_documented(module, gone):
    program = (
        "for name in ('', '.loaders', '.ops', '.ops.readers', '.readers'):\n"
        "    it = sys.modules.get('dali_storage' + name)\n"
        "    text = it and pydoc.render_doc(it, renderer=pydoc.plaintext)\n"
        "text = ''.join(text.split())\n"  # Python 3.13 breaks long signatures
        "print('mix(sources:' in text, dir(readers), sep='\\n')"
    )
    documented, listed = without(module, program)
    assert documented == "True"
    assert "'file'" in listed
    assert f"'{gone}'" not in listed


def test_without_dali_each_use_says_how_to_install_it_and_the_next_one_tries_again():
    program = (
        "for use in ['loaders.Loader', 'dali_storage.patch', 'from dali_storage import *'] * 2:\n"
        "    try: exec(use)\n"
        "    except ModuleNotFoundError as error: print(error)\n"
        "with readers.batches(readers.file, files=[sys.executable], batch_size=1) as batches:\n"
        "    print([it.names == [sys.executable] for it in batches])\n"
        "sys.meta_path.remove(hides); print(readers.sequence.__name__)"
    )
    *told, read, name = without("nvidia.dali", program)
    install = f"pip install -e '{ROOT}[cuda12]' (or cuda13)"
    assert told == [f"dali_storage needs NVIDIA DALI, which is not installed: {install}"] * 6
    assert (read, name) == ("[True]", "sequence")


def test_two_threads_may_use_a_name_first_at_the_same_time():
    program = (
        "from concurrent.futures import ThreadPoolExecutor; from dali_storage import readers\n"
        "with ThreadPoolExecutor(8) as pool:\n"
        "    found = {*pool.map(lambda n: getattr(readers, n), ['file', 'tfrecord', 'mix'] * 8)}\n"
        "print(len(found))"
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("3\n", "")


def test_the_first_use_may_be_in_a_fork_and_in_its_parent(tmp_path):
    (tmp_path / "a").write_bytes(b"bytes")
    use = (
        f"batches = readers.batches(readers.file, files=[{str(tmp_path / 'a')!r}], batch_size=1)\n"
        "with batches: assert [bytes(it.data[0]) for it in batches] == [b'bytes']"
    )
    program = (
        "import multiprocessing; from dali_storage import readers\n"
        f"use, forks = {'from dali_storage import readers; ' + use!r}, []\n"
        "for kind in ('fork', 'forkserver'):\n"
        "    forks += [multiprocessing.get_context(kind).Process(target=exec, args=(use,))]\n"
        "    forks[-1].start()\n"
        f"{use}\n"
        "for each in forks: each.join()\n"
        "print([each.exitcode for each in forks])"
    )
    assert run(program).stdout == "[0, 0]\n"


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
