"""The public names, and who may import whom (the picture in CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dali_storage

ROOT = Path(dali_storage.__file__).parent.parent

MAY_IMPORT = {
    "__init__": {"catalog", "errors", "reader"},
    "__main__": {"devices", "registry"},
    "buffers": {"reader"},
    "catalog": {"errors", "filters", "reader"},
    "devices": {"backends.xnvme", "backends.xnvme.pci"},
    "engines": {"reader"},
    "errors": set(),
    "filters": set(),
    "lanes": set(),
    "order": {"reader", "streams"},
    "pipelines": {"engines", "source", "nvidia"},
    "prefetch": {"buffers", "catalog", "errors", "lanes", "order", "reader"},
    "reader": {"catalog"},  # for the type checker only
    "readers": {"catalog", "order", "pipelines", "registry", "source", "nvidia"},
    "registry": {"catalog", "reader"},
    "source": {"catalog", "order", "prefetch", "reader", "nvidia"},
    "streams": {"engines", "order", "reader"},  # of order, a type for the type checker
    "testing": {"catalog", "errors", "reader", "pytest"},
}
LIBRARIES = {"numpy"} | set(sys.stdlib_module_names)


def imports(file: Path) -> tuple[set[str], set[str]]:
    """Modules that a file imports: by relative names (with their dots), and by absolute ones."""
    relative: set[str] = set()
    absolute: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            absolute |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            absolute.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            dots = "." * node.level
            names = [node.module] if node.module else [alias.name for alias in node.names]
            relative |= {dots + str(name) for name in names}
    return relative, absolute - LIBRARIES


def test_every_module_of_the_core_is_in_the_picture() -> None:
    assert {file.stem for file in (ROOT / "dali_storage").glob("*.py")} == set(MAY_IMPORT)


@pytest.mark.parametrize("module", sorted(MAY_IMPORT))
def test_the_core_imports_what_the_picture_shows(module: str) -> None:
    relative, absolute = imports(ROOT / "dali_storage" / f"{module}.py")
    assert {name.removeprefix(".") for name in relative} | absolute <= MAY_IMPORT[module]


@pytest.mark.parametrize(
    "file", sorted((ROOT / "backends").glob("*.py")), ids=lambda file: file.name
)
def test_a_backend_imports_the_core_relatively_and_no_other_backend(file: Path) -> None:
    relative, absolute = imports(file)
    assert absolute <= {"bmap_tools"}
    core = {name for name in relative if name.startswith("..")}
    assert core <= {"..catalog", "..controllers", "..errors", "..reader"}
    assert all(name.startswith("._") for name in relative - core)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "bmap_tools").glob("*.py")), ids=lambda file: file.name
)
def test_bmap_tools_needs_no_more_than_numpy(file: Path) -> None:
    _, absolute = imports(file)
    assert absolute <= {"matplotlib", "rich"}  # for pictures and bars, in functions that make them


def test_bmap_tools_works_where_nothing_else_is_installed() -> None:
    script = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['nvidia', 'dali_storage', 'matplotlib', 'rich'])\n"
        "from bmap_tools import __main__, format"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")


def test_backends_is_a_relative_link() -> None:
    assert (ROOT / "dali_storage" / "backends").readlink() == Path("../backends")


def test_the_public_names() -> None:
    assert sorted(dali_storage.__all__) == [
        "BackendUnavailable",
        "Batch",
        "Buffer",
        "Catalog",
        "IntArray",
        "Reader",
        "SampleChangedError",
        "SampleSizeChanged",
    ]
    assert all(hasattr(dali_storage, name) for name in dali_storage.__all__)


def test_the_core_works_without_dali() -> None:
    script = (
        "import sys; sys.modules['nvidia'] = None\n"
        "from dali_storage import registry; registry.load('python-file')"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_backend_by_its_wrong_name_fails(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", "import backends.memory"], capture_output=True, text=True, cwd=ROOT
    )
    assert "ImportError" in run.stderr
