"""The table of families is true of the code, and every family can be removed."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter

import pytest

from dali_storage.contract.families import FAMILIES, family_of
from tests.docs.test_imports import PRODUCT, imports_in, modules
from tests.kit.pages import text_of
from tests.kit.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(module):
    """The name by which a module is imported."""
    name = module.removesuffix(".__init__")
    return f"dali_storage.{name}" if name.split(".")[0] == "backends" else name


OURS = {name_of(name): name for name in modules() if name.startswith(PRODUCT)}


def test_the_site_shows_the_table_where_the_design_has_its_place():
    (mark,) = re.findall(r'^FAMILIES = "(.+)"$', text_of("docs/site_pages.py"), re.MULTILINE)
    assert f"\n{mark}\n" in text_of("docs/design.md")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_row_names_what_exists(family):
    assert [*family.missing()] == []
    found = [it for it in family.modules if it.removesuffix(".__init__") not in OURS]
    assert found == []
    assert [it for it in family.tests if not any((ROOT / "tests").glob(it))] == []
    assert (ROOT / "docs" / f"{family.page}.md").is_file()
    required = " ".join(PROJECT["optional-dependencies"].get(family.extra, [])).replace("-", "_")
    assert [it for it in family.packages if it not in required] == []
    assert {f"dali_storage.cli.{it}" for it in family.commands} <= OURS.keys()


def at_once(module):
    """The modules of ours that a module imports when it is imported."""
    source, lines = modules()[module].read_text(), set()
    todo = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.add(node.lineno)
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not typing and not isinstance(node, (ast.FunctionDef, ast.Lambda)):
            todo += ast.iter_child_nodes(node)
    found = [name_of(it.module) for it in imports_in(module, source) if it.line in lines]
    return {it for it in found if it in OURS}


def test_a_family_imports_the_core_and_what_it_needs_and_the_core_no_family():
    """A command also imports what commands share."""
    needed = {name: set() for name in FAMILIES}
    for name, module in OURS.items():
        shared = {"cli"} if name.startswith("dali_storage.cli.") else set()
        needed[family_of(name).name] |= {family_of(it).name for it in at_once(module)} - shared
    for name, found in needed.items():
        assert found - {name, "core"} <= {*FAMILIES[name].needs}, name


def test_who_needs_whom_has_no_circle():
    TopologicalSorter({it.name: it.needs for it in FAMILIES.values()}).prepare()


def everyone_without(name):
    """The families that do not need one, nor a family that does."""
    gone = {name}
    for each in TopologicalSorter({it.name: it.needs for it in FAMILIES.values()}).static_order():
        if gone & {*FAMILIES[each].needs}:
            gone.add(each)
    return [it for it in FAMILIES if it not in gone]


PROMISES = "readers/test_promises.py::test_"
READS = PROMISES + "batches_without_a_pipeline_are_those_of_one[{}]"
TRIALS = {  # a few seconds for each family; those of readers have `READS`
    "core": f"readers/test_file.py dali/test_start.py order/test_order.py {READS.format('file')}"
    " reading/test_buffers.py reading/test_lanes.py contract/test_ranges.py",
    "extents": "backends/extents/test_samples.py",
    "xnvme": "backends/xnvme/test_nodes.py",
    "gpu": "backends/gpu/test_queue_pairs.py",
    "objects": "backends/objects/test_pool.py",
    "resuming": f"{PROMISES}a_state_of_other_data_is_refused[file]",
    "bad_samples": f"{PROMISES}a_bad_sample_is_replaced_by_a_good_one_and_told[file]",
    "receipts": f"{PROMISES}what_was_delivered_is_counted[file]",
    "reports": "observing/test_signals.py",
    "prometheus": "observing/test_statistics.py::test_prometheus_gets_histograms_with_exact_counts",
    "loaders": "loaders/test_loader.py::test_a_newer_iterator_ends_an_older_one",
    "ops": "ops/test_patch.py::test_patch_decorates_a_definition_with_conditionals",
    "dynamic": "dynamic/test_epochs.py::test_two_epochs_at_once_take_from_one_stream",
    "proof": "cli/test_prove.py::test_filters_are_those_of_the_reader",
    "cli": "cli/test_doctor.py",
    "hub": "samples/test_hub.py",
}
BY_TESTING = {"extents", "xnvme"}  # their tests inherit promises from the family "testing"
UNTOLD = {"dlio", "dynamic", "loaders", "prometheus", "testing"}  # packages, which Python names
SHORT = "bad_samples", "extents", "tfrecord"


def run_without(names, tested, temporary):
    """What is told of families that are removed, while the tests of others pass."""
    tests = []
    for each in tested:
        brought = re.findall(r"readers\.(\w+)", FAMILIES[each].brings)
        tests += TRIALS.get(each, " ".join(map(READS.format, brought))).split()
    command = [sys.executable, "-m", "tests.kit.removed", ",".join(names)]
    command += [f"--basetemp={temporary}", *(f"tests/{it}" for it in tests)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    for name, told in zip(names, done.stdout.splitlines(), strict=False):
        if name not in UNTOLD:
            assert told.startswith(f"{FAMILIES[name].brings}: this installation has no ")
            assert told.endswith("; install a complete dali-storage")


def test_without_families_the_core_works_and_what_they_bring_is_told(tmp_path):
    run_without(SHORT, ["core"], tmp_path / "temporary")


@pytest.mark.long
@pytest.mark.parametrize("name", [it for it in FAMILIES if it != "core"])
def test_without_a_family_the_others_work_and_what_it_brings_is_told(name, tmp_path):
    others = [it for it in everyone_without(name) if not (name == "testing" and it in BY_TESTING)]
    run_without([name], others, tmp_path / "temporary")


# A reader or a backend is a module of its name.
FOLDERS = {it for it in OURS.values() if it.endswith(".__init__")}
FOLDERS -= {"backends.__init__", "dali_storage.readers.__init__"}


@pytest.mark.parametrize("folder", sorted(FOLDERS))
def test_a_folder_names_its_modules(folder):
    doc, within = ast.get_docstring(ast.parse(modules()[folder].read_text())), folder[:-8]
    names = [it.rpartition(".")[2] for it in modules() if it.rpartition(".")[0] + "." == within]
    names = [it for it in names if not it.startswith("_")]
    assert [it for it in names if not re.search(rf"`{it}`|^ +{it} ", doc, re.MULTILINE)] == []
