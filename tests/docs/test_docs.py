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
from dali_storage.cli import index
from dali_storage.cli.index import main as make_indexes
from dali_storage.contract import registry
from tests.kit import option_tables
from tests.kit.pages import DOCUMENTS, prose_of, snippets, text_of
from tests.kit.paths import ROOT

HEADINGS = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def commands():
    """All shell commands of all documents, split into words, without their comments."""
    lines = [
        (document, line)
        for document in DOCUMENTS
        for snippet in snippets(document, "sh")
        for line in snippet.replace("\\\n", "").splitlines()
        if line.strip()
    ]
    inline = [
        (document, code)
        for document in DOCUMENTS
        for code in re.findall(r"`(make [^`]+)`", prose_of(document))
    ]
    return [
        (document, words)
        for document, line in lines + inline
        if (words := shlex.split(line, comments=True))
    ]


def named(commands, *start):
    """Those of the commands that start with these words, as parameters of a test."""
    found = [(document, words) for document, words in commands if words[: len(start)] == [*start]]
    return [
        pytest.param(words[len(start) :], id=f"{document}: {shlex.join(words)}")
        for document, words in found
    ]


def test_every_python_snippet_is_known_to_a_test():
    assert {
        name: len(snippets(name, "python")) for name in DOCUMENTS if "```python" in text_of(name)
    } == {
        "README.md": 1,
        "docs/audio.md": 1,
        "docs/bad-samples.md": 2,
        "docs/batches.md": 2,
        "docs/bmap.md": 1,
        "docs/coco.md": 1,
        "docs/container-readers.md": 1,
        "docs/containers.md": 3,
        "docs/lmdb.md": 1,
        "docs/loaders.md": 2,
        "docs/more-readers.md": 1,
        "docs/object-store.md": 2,
        "docs/observability.md": 3,
        "docs/older-code.md": 2,
        "docs/other-formats.md": 1,
        "docs/prove.md": 1,
        "docs/receipts.md": 1,
        "docs/resume.md": 1,
        "docs/sampling.md": 2,
        "docs/scaling.md": 4,
        "docs/slow.md": 2,
        "docs/start.md": 1,
        "docs/transforms.md": 1,
        "docs/write-a-backend.md": 6,
        "docs/xnvme.md": 1,
    }


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
    assert named == [
        f"fn.{place}.{name}"
        for place, module in (
            ("readers", fn.readers),
            ("experimental.readers", fn.experimental.readers),
        )
        for name, _ in inspect.getmembers(module, inspect.isfunction)
    ]


def test_every_reader_and_operator_of_the_page_of_other_formats_exists():
    """Also that the table leads to the page of each of our readers."""
    page = text_of("docs/other-formats.md")
    for name in re.findall(r"`(readers|fn)((?:\.\w+)+)", page):
        operator.attrgetter(name[1][1:])({"readers": readers, "fn": fn}[name[0]])
    linked = re.findall(r"\[`readers\.(\w+)`\]\(", page)
    every = {getattr(ops.readers, name).reader.__name__ for name in ops.readers.__all__}
    assert {*linked} == every - {"file"} | {"mix"}


def test_the_readme_can_be_read_at_once():
    """Words as a reader sees them: of a link only its text; marks of Markdown are no words."""
    assert len(text_of("README.md").splitlines()) <= 75
    rendered = re.sub(r"\]\([^)]*\)|^```\w*$", "", text_of("README.md"), flags=re.MULTILINE)
    assert len([word for word in rendered.split() if re.search(r"\w", word)]) <= 650


def test_every_figure_of_the_readme_was_measured():
    pages = ("docs/benchmarks.md", "docs/benchmarks-by-hand.md", "docs/gpu.md")
    measured = "".join(map(text_of, pages))
    claims = re.findall(
        r"\d[\d,.]*(?=x\b| ?(?:%|[KMG]B\b|images\b|cores?\b|times\b|JPEGs))", prose_of("README.md")
    )
    assert claims
    for claim in claims:
        assert re.search(rf"(?<![\d.,]){re.escape(claim)}(?![.,]?\d)", measured), claim


def test_the_chart_of_the_readme_is_that_of_the_table():
    page = text_of("docs/benchmarks.md")
    assert len(chart.rows(page)) > 9
    same = chart.drawing(page) == text_of("docs/gain.svg")
    assert same, "docs/gain.svg is out of date: run python -m benchmarks.chart"


def test_the_way_of_a_batch_is_drawn_through_files_that_exist():
    drawn = re.findall(r'class="c"[^>]*>([^<]+)<', text_of("docs/way.svg"))
    assert len(drawn) > 15
    assert [
        it
        for it in drawn
        if not (ROOT / it if "backends/" in it else ROOT / "dali_storage" / it).is_file()
    ] == []


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
    assert [
        path
        for path in PATHS.findall(prose_of(document))
        if not any(name.endswith(f"/{path.rstrip('/')}") for name in known)
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_names_of_the_documents_exist(document):
    for name in re.findall(r"\bdali_storage(?:\.\w+)+", prose_of(document)):
        # That of DLIO is imported in test-dlio, where DLIO is.
        if name not in ("dali_storage.backends.x", "dali_storage.dlio.Loader"):
            pkgutil.resolve_name(name)


@pytest.mark.parametrize(
    "document", ["CONTRIBUTING.md", "docs/design.md", "docs/write-a-backend.md"]
)
def test_the_functions_of_the_documents_exist(document):
    """Written as `name()` or `Class.name()`; those of Python, DALI and CUDA have a module."""
    sources = [*(ROOT / "dali_storage").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]
    sources += [ROOT / "tests/kit/tiers.py"]
    known = {
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
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
    monkeypatch.setattr(index.index_samples, "main", lambda root, given: done.append("main") or 0)
    monkeypatch.setattr(index.index_samples, "verify", lambda files: done.append("verify") or 0)
    monkeypatch.setattr(index, "write", lambda *_: done.append("write"))
    parse = index.index_coco._parser().parse_args
    monkeypatch.setattr(
        index.index_coco, "main", lambda words: done.append(parse(words).output) or 0
    )
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
        "pip install",
        "apt-get install",
        "docker build",
        "docker run",
        "git clone",  # how libxnvme is built
        "meson setup",
        "meson compile",
        "export XNVME_LIBRARY_PATH=$PWD/xnvme/build/lib/libxnvme.so",
        "umount /data",  # how a controller is taken from the kernel
        "sysctl vm.nr_hugepages=512",
        "driverctl --nosave",
        "torchrun --nnodes",
        "srun --nodes",
    }
    modules = {words[2] for _, words in commands() if words[:2] == ["python", "-m"]}
    assert modules == {"bmap_tools", "dali_storage", "pytest"}


def test_the_extras_that_are_installed_exist():
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for document in (
        "README.md",
        "docs/backend-options.md",
        "docs/coco.md",
        "docs/mlperf-storage.md",
        "docs/object-store.md",
    ):
        groups = re.findall(r"(?:dali-storage|'\.)\[([\w,-]+)\]", text_of(document))
        assert groups
        assert {extra for group in groups for extra in group.split(",")} <= set(extras)
