"""The imports of all the code, compared with the listing in imports.txt; the public names."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dali_storage
from tests.kit.paths import ROOT

PACKAGES = ("dali_storage", "backends", "bmap_tools", "benchmarks", "examples", "tests")
LINK = ("dali_storage", "backends")
EVERYWHERE = {"numpy", "__future__", *sys.stdlib_module_names}


@cache
def modules():
    """All Python files of the repository by module name; `dali_storage/backends` is only a link."""
    files = [
        ROOT / "benchmark.py",
        *(f for package in PACKAGES for f in (ROOT / package).rglob("*.py")),
    ]
    parts = {file.relative_to(ROOT).with_suffix("").parts: file for file in files}
    return {".".join(name): parts[name] for name in sorted(parts) if name[:2] != LINK}


@dataclass(frozen=True)
class Import:
    """One imported name: from the module `importer`, in its file's line."""

    importer: str
    module: str
    name: str
    line: int

    def __str__(self):
        return f"{self.importer}:{self.line} imports {self.module} ({self.name})"


def imports_in(importer, source):
    """What a module imports, anywhere in it: our modules by name, others by their package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, *known(alias.name), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(importer, node)
            for alias in node.names:
                yield Import(importer, *known(base, alias.name), node.lineno)


def absolute(importer, node):
    """The module of a `from ... import`, without dots."""
    if node.level == 0:
        return node.module or ""
    parts = importer.split(".")
    if parts[0] == "backends":  # is imported as dali_storage.backends
        parts.insert(0, "dali_storage")
    base = parts[: len(parts) - node.level]
    return ".".join([*base, node.module or ""]).rstrip(".")


def known(module, name=""):
    """Our module, and the name imported from it; or the package of somebody else."""
    module = module.removeprefix("dali_storage.") if is_backend(module) else module
    if module == "dali_storage" and name == "backends":
        module, name = "backends", ""
    for candidate, rest in ((f"{module}.{name}", ""), (module, name)):
        for found in (candidate, f"{candidate}.__init__"):
            if found in modules():
                return found, rest
    if module.split(".")[0] in PACKAGES:
        raise AssertionError(f"there is no module {module}")
    return module.split(".")[0], name


def is_backend(module):
    return f"{module}.".startswith("dali_storage.backends.")


def folder(module):
    return module.rpartition(".")[0]


@cache
def all_imports():
    return [each for name, file in modules().items() for each in imports_in(name, file.read_text())]


@pytest.mark.parametrize("where", ["def f():", "if TYPE_CHECKING:"])
def test_an_import_that_is_not_at_the_top_is_found(where):
    (found,) = imports_in("tests.test_block", f"{where}\n  import dali_storage.contract.reader")
    assert found.module == "dali_storage.contract.reader"


# --- the picture ---


@dataclass
class Picture:
    """What imports.txt says. A room is a set of modules.

    A line says what a module or a folder may import:

    * `order/` is a folder without the folders in it; `tests/**` is a folder with all of them.
    * A name without a slash is one module: `block`, below `backends:`, is `backends/block.py`. On
      the right, `dali_storage` is `dali_storage/__init__.py`.
    * A name belongs to its section: `files/`, below `backends:`, is `backends/files/`. If that does
      not exist, the name belongs to `dali_storage`, or else stands for itself, as `obstore` does.
    * The standard library and numpy may be imported everywhere, and modules of one folder may
      import each other.

    Attributes:
        rooms: the modules of each room.
        arrows: of each room, the modules or packages that it may import, by their names there.
    """

    rooms: dict[str, set[str]] = field(default_factory=dict)
    arrows: dict[str, dict[str, set[str]]] = field(default_factory=dict)


@cache
def picture():
    text = (ROOT / "tests/docs/imports.txt").read_text()
    drawn, section = Picture(), ""
    for line in re.sub(r",\n +", ", ", text).splitlines():
        if match := re.fullmatch(r"(\w+):", line):
            section = match[1]
        elif match := re.fullmatch(r"( *)(\S+) +->(.*)", line):
            section = section if match[1] else ""
            room = f"{section}.{match[2]}".lstrip(".")
            drawn.rooms[room] = resolve(section, match[2])
            drawn.arrows[room] = {
                target: resolve(section, target)
                for target in filter(None, match[3].strip().split(", "))
            }
        else:
            assert not line.strip(), f"tests/docs/imports.txt: cannot read {line!r}"
    return drawn


def resolve(section, name):
    """The modules that a name of the picture stands for, seen from a section of it."""
    for prefix in dict.fromkeys([f"{section}.".lstrip("."), "dali_storage.", ""]):
        path = prefix + name.rstrip("/*").replace("/", ".")
        if name.endswith("/**"):
            found = {module for module in modules() if module.startswith(f"{path}.")}
        elif name.endswith("/"):
            found = {module for module in modules() if folder(module) == path}
        else:
            found = {path, f"{path}.__init__"} & set(modules())
        if found:
            return found
    return {name}


def test_every_module_is_in_the_picture_once():
    rooms = [module for room in picture().rooms.values() for module in room]
    assert sorted(rooms) == sorted(modules())


@pytest.mark.parametrize("room", picture().rooms)
def test_a_room_imports_what_the_picture_shows_and_all_of_that(room):
    inside, arrows = picture().rooms[room], picture().arrows[room]
    allowed = set().union(inside, *arrows.values())
    outgoing = [
        each
        for each in all_imports()
        if each.importer in inside and each.module not in EVERYWHERE | inside
    ]
    assert [str(each) for each in outgoing if each.module not in allowed] == []
    used = {each.module for each in outgoing}
    assert [target for target, found in arrows.items() if not found & used] == []


def module_itself(module):
    return module


PRODUCT = "dali_storage", "backends", "bmap_tools"


@pytest.mark.parametrize("room", [module_itself, folder])
def test_no_import_is_part_of_a_circle(room):
    """Neither modules nor folders, of which the loose modules of a package are one."""
    graph = {}
    for each in all_imports():
        importer, imported = room(each.importer), room(each.module)
        if each.module in modules() and importer.startswith(PRODUCT) and importer != imported:
            graph.setdefault(importer, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' <- '.join(error.args[1])}")


def test_a_backend_imports_nothing_of_the_core_but_contract_and_runtime():
    assert [
        str(each)
        for each in all_imports()
        if each.importer.startswith("backends.")
        and each.module.startswith("dali_storage.")
        and folder(each.module) not in ("dali_storage.contract", "dali_storage.runtime")
    ] == []


def test_only_doors_stand_at_the_top():
    doors = [module for module in modules() if folder(module) == "dali_storage"]
    assert doors == ["dali_storage.__init__", "dali_storage.__main__"]


def test_no_public_class_exists_twice():
    names = Counter(
        node.name
        for module, file in modules().items()
        if module.startswith(PRODUCT)
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_private_names_stay_in_their_folder():
    assert [
        str(each)
        for each in all_imports()
        if re.match("_[^_]", each.name)
        and each.module in modules()
        and folder(each.module) != folder(each.importer)
    ] == []


ENGINES = ("backends.linux.", "backends.xnvme.")
PRODUCTS = {
    module
    for module in modules()
    if re.fullmatch(r"backends\.\w+", module) and module != "backends.__init__"
}


def reachable(*roots):
    """All modules of ours that some modules may load."""
    found = set()
    todo = {*roots}
    while todo:
        found |= todo
        todo = {e.module for e in all_imports() if e.importer in todo}
        todo = todo & set(modules()) - found
    return found - {*roots}


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith(ENGINES)])
def test_an_engine_reaches_no_kit_and_no_catalog(module):
    kits = ("backends.files.", "backends.extents.", "dali_storage.contract.catalog")
    assert [found for found in reachable(module) if found.startswith(kits)] == []


@pytest.mark.parametrize("module", sorted(PRODUCTS))
def test_a_product_reaches_no_other_product(module):
    assert reachable(module) & PRODUCTS == set()


def test_the_core_reaches_no_backend():
    core = [module for module in modules() if module.startswith("dali_storage.")]
    assert core
    for module in core:
        assert [found for found in reachable(module) if found.startswith("backends.")] == []


# --- what is loaded ---


def run(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)


def test_bmap_tools_works_where_nothing_else_is_installed():
    done = run(
        "import sys\n"
        "sys.modules |= dict.fromkeys(['nvidia', 'dali_storage', 'rich'])\n"
        "from bmap_tools import __main__, extent_map"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_core_works_without_dali_and_without_rich():
    done = run(
        "import sys; sys.modules['nvidia'] = sys.modules['rich'] = None\n"
        "from dali_storage.cli import doctor\n"
        "from dali_storage.contract import registry; registry.load('python-file')"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_order_without_a_shuffle_loads_no_shuffle():
    done = run(
        "import sys\n"
        "from dali_storage.order import Order, OrderOptions\n"
        "Order(10, 4, OrderOptions()).batch(5)\n"
        "assert not {'dali_storage.order.streams', 'dali_storage.order.libstdcxx'} & {*sys.modules}"
    )
    assert (done.returncode, done.stderr) == (0, "")


EPOCH = """
import json, os, sys, tempfile
from nvidia.dali import pipeline_def
from dali_storage import readers

@pipeline_def(batch_size=8, num_threads=2, device_id=None)
def pipeline(root):
    return readers.file(file_root=root, random_shuffle=True, seed=7, name="Reader")

with tempfile.TemporaryDirectory() as root:
    os.mkdir(os.path.join(root, "class"))
    for number in range(100):
        with open(os.path.join(root, "class", f"{number}.jpg"), "wb") as file:
            file.write(bytes([number]) * 1000)
    pipe = pipeline(root)
    for _ in range(13):
        pipe.run()
files = {name: getattr(it, "__file__", None) for name, it in sys.modules.items()}
names = "dali_storage", "backends", "bmap_tools"
print(json.dumps({name: it for name, it in files.items() if name.split(".")[0] in names and it}))
"""
CORE = (
    "contract",
    "order",
    "reading",
    "runtime",
    "observing",
    "samples",
    "dali",
    "readers",
    "backends",
)


def test_an_epoch_of_the_default_reader_loads_the_core_and_nothing_else():
    """A successor reads what a default pipeline loads. See docs/design.md."""
    done = run(EPOCH)
    assert done.returncode == 0, done.stderr
    lines = {
        name: len(Path(file).read_text().splitlines())
        for name, file in json.loads(done.stdout).items()
    }
    inside = re.compile(rf"dali_storage(\.({'|'.join(CORE)})(\.\w+)*)?")
    plugs = re.compile(r"\.(sampling|resuming|gpu_memory|cuda|containers|extents)\b")
    beyond = [name for name in lines if not inside.fullmatch(name) or plugs.search(name)]
    assert beyond == []
    listed = "\n".join(f"{lines[name]:5} {name}" for name in sorted(lines, key=lines.__getitem__))
    assert len(lines) <= 63, listed
    assert sum(lines.values()) <= 8710, f"{sum(lines.values())} lines\n{listed}"


def test_a_receipt_loads_no_other_family():
    done = run(EPOCH.replace("seed=7", "receipt='bytes', pad_last_batch=True"))
    found = re.findall(r"dali_storage\.(receipts\.ledger|bad_samples|order\.sampling)", done.stdout)
    assert {*found} == {"receipts.ledger"}, done.stderr


def test_backends_is_a_relative_link():
    assert (ROOT / "dali_storage" / "backends").readlink() == Path("../backends")


def test_a_backend_by_its_wrong_name_fails():
    assert "ImportError" in run("import backends.memory").stderr


PUBLIC = """
BackendUnavailable Batch Buffer Catalog ContainerChangedError DeviceStatus Format IntArray Listing
ObjectReplacedError Output Ranges Reader ReaderStatistics RecordError Remote SCHEMES
SampleChangedError SampleSizeChanged Spans StageTimes Tree metrics patch report report_on shard
statistics
"""


def test_the_public_names():
    assert sorted(dali_storage.__all__) == PUBLIC.split()
    assert all(hasattr(dali_storage, name) for name in dali_storage.__all__)
