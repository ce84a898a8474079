"""The documents are true: tables match signatures, figures were measured, links lead somewhere."""

import ast
import inspect
import operator
import os
import pkgutil
import re
import shlex
import tomllib

import pytest
from nvidia.dali import fn

import bmap_tools.__main__
from benchmarks import arguments, chart
from dali_storage import ops, readers
from dali_storage.cli import index, index_coco, index_samples
from dali_storage.cli.index import main as make_indexes
from dali_storage.contract import registry
from tests.kit import option_tables
from tests.kit.pages import DOCUMENTS, prose_of, snippets, text_of
from tests.kit.paths import ROOT

HEADINGS = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def commands():
    """All shell commands of all documents, split into words, without their comments."""
    found = []
    for document in DOCUMENTS:
        lines = "".join(snippets(document, "sh")).replace("\\\n", "").splitlines()
        lines += re.findall(r"`(make [^`]+)`", prose_of(document))
        found += [(document, shlex.split(line, comments=True)) for line in lines]
    return [(document, words) for document, words in found if words]


def named(commands, *start):
    """Those of the commands that start with these words, as parameters of a test."""
    found = [(document, words) for document, words in commands if words[: len(start)] == [*start]]
    return [
        pytest.param(words[len(start) :], id=f"{document}: {shlex.join(words)}")
        for document, words in found
    ]


SNIPPETS = {"README": 1, "bad-samples": 2, "batches": 2, "containers": 3, "loaders": 2}
SNIPPETS |= {"object-store": 2, "other-formats": 2, "parquet": 2}
SNIPPETS |= {"observability": 3, "older-code": 2, "sampling": 3, "scaling": 4, "slow": 2}
SNIPPETS |= {"write-a-backend": 6}
ONE = "audio bmap coco container-readers lmdb more-readers prove receipts resume"
SNIPPETS |= dict.fromkeys([*ONE.split(), "shards", "start", "transforms", "xnvme"], 1)
"""How many each page has; test_snippets.py and the tests of some families run them."""


def test_every_python_snippet_is_known_to_a_test():
    names = {re.sub(r"^docs/|\.md$", "", name): name for name in DOCUMENTS}
    found = {page: len(snippets(name, "python")) for page, name in names.items()}
    assert {page: count for page, count in found.items() if count} == SNIPPETS


def test_the_page_about_backends_names_no_inner_module():
    assert not re.findall(
        r"dali_storage\.(?:contract|reading|samples|order)\b", text_of("docs/write-a-backend.md")
    )


@pytest.mark.parametrize(
    "document", ["README.md", "docs/containers.md", "docs/object-store.md", "docs/start.md"]
)
def test_the_diff_is_a_change_of_valid_code(document):
    diffs = snippets(document, "diff")
    assert diffs
    for diff in diffs:
        for sign, imported in (("-", r"nvidia\.dali\.fn|fn\.readers"), ("+", "dali_storage")):
            kept = [line[1:] for line in diff.splitlines() if line[0] in (" ", sign)]
            if kept[-1].endswith(","):
                kept[-1] = kept[-1].rstrip(",") + ")"  # the added lines end the call
            code = ast.unparse(ast.parse("\n".join(kept)))
            assert re.search(imported, code)
            assert ("dali_storage" in code) == (sign == "+")


def test_every_reader_of_dali_is_in_the_table_of_the_readers():
    named = re.findall(r"^\| `(fn\.\S+)` \|", text_of("docs/other-formats.md"), re.MULTILINE)
    places = {"readers": fn.readers, "experimental.readers": fn.experimental.readers}
    assert named == [
        f"fn.{place}.{name}"
        for place, module in places.items()
        for name, _ in inspect.getmembers(module, inspect.isfunction)
    ]


def test_every_reader_and_operator_of_the_page_of_other_formats_exists():
    """Also that the table leads to the page of each of our readers."""
    page = text_of("docs/other-formats.md")
    for name in re.findall(r"`(readers|fn)((?:\.\w+)+)", page):
        operator.attrgetter(name[1][1:])({"readers": readers, "fn": fn}[name[0]])
    linked = re.findall(r"\[`readers\.(\w+)[`(]", page)
    every = {getattr(ops.readers, name).reader.__name__ for name in ops.readers.__all__}
    assert {*linked} == every | {"mix"}


def test_the_readme_can_be_read_at_once():
    """Words as a reader sees them: of a link only its text; marks of Markdown are no words."""
    assert len(text_of("README.md").splitlines()) <= 75
    rendered = re.sub(r"\]\([^)]*\)|^```\w*$", "", text_of("README.md"), flags=re.MULTILINE)
    assert len([word for word in rendered.split() if re.search(r"\w", word)]) <= 650


@pytest.mark.parametrize(("name", "count"), [("gain.svg", 10), ("mlperf-storage.svg", 12)])
def test_a_chart_is_that_of_its_table(name, count):
    drawn = chart.draw(name)
    assert drawn.count("<rect") >= count
    same = drawn == text_of(f"docs/{name}")
    assert same, f"docs/{name} is out of date: run python -m benchmarks.chart"


def test_the_way_of_a_batch_is_drawn_through_files_that_exist():
    drawn = re.findall(r'class="c"[^>]*>([^<]+)<', text_of("docs/way.svg"))
    assert len(drawn) > 15
    places = [ROOT / ("" if "backends/" in it else "dali_storage") / it for it in drawn]
    assert [place for place in places if not place.is_file()] == []


# prefix/ begins the key of an object.
PATHS = re.compile(r"`((?:\w+/)*\w+\.(?:py|cu|toml)|(?!prefix/)(?:\w+/)+)`")


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", *filter(re.compile("docs/").match, DOCUMENTS)]
)
def test_the_paths_of_the_documents_exist(document):
    """Whole paths, and ends of paths."""
    folders = "dali_storage", "backends", "bmap_tools", "benchmarks", "tests", "examples"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    known = {f"/{path.relative_to(ROOT)}" for path in [*files, *ROOT.iterdir()]}
    for path in PATHS.findall(prose_of(document)):
        assert any(name.endswith(f"/{path.rstrip('/')}") for name in known), path


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_names_of_the_documents_exist(document):
    for name in re.findall(r"\bdali_storage(?:\.\w+)+", prose_of(document)):
        # That of DLIO is imported in test-dlio, where DLIO is.
        if name != "dali_storage.backends.x" and not name.startswith("dali_storage.dlio"):
            pkgutil.resolve_name(name)


def test_the_functions_of_the_documents_exist():
    """Written as `name()` or `Class.name()`; those of Python, DALI and CUDA have a module."""
    sources = [*(ROOT / "dali_storage").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    sources += [ROOT / "tests/kit/tiers.py"]
    defined = re.compile(r"^ *(?:async )?(?:def|class) (\w+)", re.MULTILINE)
    known = {name for source in sources for name in defined.findall(source.read_text())}
    for document in ("CONTRIBUTING.md", "docs/design.md", "docs/write-a-backend.md"):
        named = re.findall(r"`([A-Z]\w+\.\w+|\w+)\(\)`", prose_of(document))
        assert named
        assert [name for name in named if not known.issuperset(name.split("."))] == []


def test_the_tables_of_options_are_those_of_the_constructors():
    same = option_tables.page() == option_tables.PAGE.read_text()
    assert same, "docs/backend-options.md is out of date: run python -m tests.kit.option_tables"


def test_every_backend_is_in_the_first_table_of_the_backends_page():
    table = re.findall(r"^\| `([\w-]+)`", text_of("docs/backends.md").split("\n## ")[0], re.M)
    assert set(registry.names()) <= set(table)


def anchors(document):
    """The anchors that a Markdown renderer makes of the headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADINGS.findall(text_of(document))
    }


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"https://[\w.-]+(/|$)", target):
            continue  # no network in a test
        path, _, anchor = target.partition("#")
        there = (ROOT / document).parent / path if path else ROOT / document
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.resolve().relative_to(ROOT).as_posix()), target


@pytest.mark.parametrize("words", named(commands(), "make"))
def test_the_targets_of_make_exist(words):
    assert re.search(rf"^{words[0]}:", text_of("Makefile"), re.MULTILINE)


@pytest.mark.parametrize("words", named(commands(), "python", "-m", "bmap_tools"))
def test_the_command_lines_of_bmap_tools_are_accepted(words):
    assert bmap_tools.__main__.parser().parse_args(words).command == words[0]


@pytest.mark.parametrize("words", named(commands(), "python", "-m", "dali_storage", "index"))
def test_the_command_lines_that_make_indexes_are_accepted(words, monkeypatch):
    done = []
    monkeypatch.setattr(os.path, "isdir", ["/data/train", "DIR"].__contains__)
    monkeypatch.setattr(index, "write", lambda *_: done.append("write"))
    monkeypatch.setattr(
        index, "of_hub", lambda its: ([it.replace("hf", "https") for it in its], {})
    )
    monkeypatch.setattr(index_samples, "verify", lambda words: done.append("verify") or 0)
    for form in (index_samples, index_coco):
        parse = form.parser().parse_args
        monkeypatch.setattr(form, "main", lambda words, p=parse: done.append(p(words).output) or 0)
    assert make_indexes(words) == 0
    assert len(done) == 1


@pytest.mark.parametrize("words", named(commands(), "python", "benchmark.py"))
def test_the_command_lines_of_the_benchmark_are_accepted(words):
    if words[-1] == "--help":
        words = words[:-1]
    assert arguments.parser().parse_args(words).command in words


def test_every_other_command_is_one_that_is_meant():
    others = {" ".join(words[:2]) for _, words in commands()} - {"python -m", "python benchmark.py"}
    assert {start for start in others if not start.startswith("make ")} == {
        *("pip install", "apt-get install", "docker build", "docker run"),
        *("git clone", "meson setup", "meson compile"),  # how libxnvme is built
        "export XNVME_LIBRARY_PATH=$PWD/xnvme/build/lib/libxnvme.so",
        "umount /data",  # how a controller is taken from the kernel
        *("sysctl vm.nr_hugepages=512", "driverctl --nosave"),
        *("torchrun --nnodes", "srun --nodes"),
    }
    modules = {words[2] for _, words in commands() if words[:2] == ["python", "-m"]}
    assert modules == {"bmap_tools", "dali_storage", "pytest"}


def test_the_extras_that_are_installed_exist():
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    pages = "backend-options", "coco", "mlperf-storage", "object-store"
    for document in ("README.md", *(f"docs/{page}.md" for page in pages)):
        groups = re.findall(r"(?:dali-storage|'\.)\[([\w,-]+)\]", text_of(document))
        assert groups
        assert {extra for group in groups for extra in group.split(",")} <= set(extras)
