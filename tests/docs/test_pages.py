"""The pages can be read: short, with short cells; differences and figures lead to their proofs."""

import ast
import inspect
import re

import pytest

from dali_storage import readers
from tests.kit.pages import DOCUMENTS, prose_of, text_of
from tests.kit.paths import ROOT

PAGES = [document for document in DOCUMENTS if document.startswith("docs/")]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_short_and_so_are_the_cells_of_its_tables(page):
    assert len(text_of(page).splitlines()) <= 250
    rows = [line for line in prose_of(page).splitlines() if line.startswith("|")]
    shown = [re.sub(r"\]\([^)]*\)", "]", cell) for row in rows for cell in row.split(" | ")]
    assert [cell for cell in shown if len(cell) >= 400] == []


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- ([\w-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    others = {"contributing.md", "changelog.md", "security.md"}
    assert sorted({*listed} - others) == sorted(page.removeprefix("docs/") for page in PAGES)


def differences():
    rows = re.findall(r"^\| .* \| (.*) \|$", text_of("docs/differences.md"), re.MULTILINE)
    assert len(rows) > 90
    return sorted({it.strip("`") for row in rows if row != "test" for it in row.split(", ")})


@pytest.mark.parametrize("test", differences())
def test_a_difference_from_dali_names_tests_that_exist(test):
    path, name = test.split("::")
    text = "".join(
        (ROOT / folder / path).read_text()
        for folder in ("tests", "dali_storage")
        if (ROOT / folder / path).is_file()
    )
    assert re.search(rf"def {name}\(", text)


NUMBERS = r"(?<![\w\\])([\d.,]*\d)(?: (?:to|and) ([\d.,]*\d))?"
SPEED = re.compile(NUMBERS + r"(?:x| times as fast| images/s)\b")
OF_README = re.compile(NUMBERS + r"(?=x\b| ?(?:%|[KMG]B\b|images\b|cores?\b|times\b|JPEGs))")
FIGURES = {it: SPEED for it in PAGES if "docs/bench" not in it} | {"README.md": OF_README}


@pytest.mark.parametrize("page", FIGURES)
def test_a_figure_that_a_page_quotes_was_measured(page):
    measured = "".join(text_of(it) for it in PAGES if "docs/benchmarks" in it)
    measured += text_of("docs/gpu.md") if page == "README.md" else ""
    quoted = [figure for found in FIGURES[page].findall(prose_of(page)) for figure in found]
    assert any(quoted) or page != "README.md"
    for figure in filter(None, quoted):
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![.,]?\d)", measured), figure


def calls():
    """The calls of readers for the data of a user."""
    table = text_of("docs/other-formats.md").partition("## DALI's readers")[0]
    return re.findall(r"`(readers\.\w+\(.*?\))`", table)


def test_every_reader_has_a_call_for_ones_data():
    shown = {"caffe2", "manifest"}
    for call in calls():
        tree = ast.parse(call, mode="eval").body
        signature = inspect.signature(getattr(readers, tree.func.attr))
        signature.bind(**dict.fromkeys(word.arg for word in tree.keywords))
        shown.add(tree.func.attr)
    every = {name: inspect.signature(getattr(readers, name)).parameters for name in readers.__all__}
    assert shown == {name for name, parameters in every.items() if "backend" in parameters}
