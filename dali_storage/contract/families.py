"""The families of the project: what each brings, and what is removed with it.

A *family* is what only some users need: a container format, a backend, an argument, a command. The
*core* is the rest. Nobody loads a family that nobody asks for, and without it all goes on but what
it brings. The rows are in families.md, which the site shows on the page of docs/design.md; only
messages load them.
"""

import json
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from itertools import accumulate
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .errors import BackendUnavailable


def install(extra: str) -> str:
    """The command that installs an extra, from where this package itself is installed from.

    That is a checkout, a directory, a wheel, a URL, or else an index.
    """
    project = Path(__file__).resolve().parents[2]
    if (project / "pyproject.toml").exists():
        return f"pip install -e {shlex.quote(f'{project}[{extra}]')}"
    found = {}
    with suppress(PackageNotFoundError):  # of files without metadata, as in a zip
        found = json.loads(distribution("dali-storage").read_text("direct_url.json") or "{}")
    url, vcs = found.get("url", ""), found.get("vcs_info")
    if url.startswith("file:") and not vcs:
        where = f"{unquote(urlsplit(url).path)}[{extra}]"
    else:
        url = f" @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url and f" @ {url}"
        where = f"dali-storage[{extra}]{url}"
    return f"pip install {shlex.quote(where)}"


def install_dali() -> str:
    """The command where DALI or CuPy is missing."""
    return f"{install('cuda12')} (or cuda13)"


class Family(NamedTuple):
    """A row of the table.

    Attributes:
        name: its name.
        brings: what users call or give.
        modules: folders, with what is in them, and modules, by their whole names.
        needs: the names of the families that its modules import.
        extra: the extra of pyproject.toml with its packages; "": none.
        packages: what needs a package, by the name of the package's module.
        commands: what a command of `python -m dali_storage` does, by its name.
        tests: patterns of the files of its tests.
        page: its page in docs/.
    """

    name: str
    brings: str
    modules: list[str]
    needs: list[str]
    extra: str
    packages: Mapping[str, str]
    commands: Mapping[str, str]
    tests: list[str]
    page: str

    @property
    def install(self) -> str:
        """The command that installs its packages."""
        return install(self.extra)

    def lacks(self, module: str) -> BackendUnavailable | None:
        """The error for a missing module that is its own, or that it needs; None: no such one."""
        if self.name != "core" and family_of(module) is self:
            what = f"{self.brings}: this installation has no {module}"
            return BackendUnavailable(what, "install a complete dali-storage")
        if what := self.packages.get(package := module.partition(".")[0], ""):
            what = f"{what}: the package {package} is not installed"
            return BackendUnavailable(what, self.install)
        return None

    def missing(self) -> Iterator[BackendUnavailable]:
        """All that is missing here."""
        names = (it for it in (*self.modules, *self.packages) if not _exists(it))
        return filter(None, map(self.lacks, names))


def family_of(module: str) -> Family:
    """The family with a module; the core for all others."""
    found = {
        folder: family
        for family in FAMILIES.values()
        for folder in family.modules
        if f"{module}.__init__.".startswith(f"{folder}.")
    }
    return found[max(found, key=len)] if found else FAMILIES["core"]


def present(face: ModuleType, names: Iterable[str]) -> Iterable[str]:
    """The names of a face that can be imported; if nothing is missing, it imports none."""
    modules = (each for family in FAMILIES.values() for each in family.modules)
    if all(map(_exists, ("nvidia.dali", *modules))):
        return names
    found = []
    for name in names:
        with suppress(BackendUnavailable, ImportError):
            getattr(face, name)
            found.append(name)
    return found


def explain(error: ModuleNotFoundError) -> None:
    """Raise `BackendUnavailable` for a family or a package; for DALI, `ModuleNotFoundError`."""
    if (name := error.name or "") in ("nvidia", "nvidia.dali"):
        what = f"dali_storage needs NVIDIA DALI, which is not installed: {install_dali()}"
        raise ModuleNotFoundError(what, name="nvidia.dali") from None
    importers = [it.f_globals.get("__name__", "") for it, _ in walk_tb(error.__traceback__)]
    families = [family_of(it) for it in (name, *reversed(importers))]
    family = next((it for it in families if it.name != "core"), FAMILIES["core"])
    if problem := family.lacks(name):
        raise problem from error


def _exists(module: str) -> bool:
    """Whether a module is found; unlike `find_spec()`, this imports no package around it."""
    path = None
    with suppress(ModuleNotFoundError, StopIteration):
        for name in accumulate(module.split("."), "{}.{}".format):
            specs = (it.find_spec(name, path) for it in sys.meta_path if sys.modules.get(name, it))
            path = next(filter(None, specs)).submodule_search_locations
        return True
    return False


def _row(line: str) -> Family:
    name, brings, modules, needs, extra, commands, tests, page = line.strip("| ").split(" | ")
    found = [it.replace("/", ".") for it in re.findall(r"`([\w/]+?)(?:/|\.py)`", modules)]
    extra, _, packages = extra.strip().replace("`", "").partition(": ")
    return Family(
        name,
        brings.replace("`", ""),
        [it if it.startswith("bmap_tools") else f"dali_storage.{it}" for it in found],
        needs.split(),
        extra,
        dict(it.split(" for ", 1) for it in packages.split("; ") if it),
        dict(it.strip().split(": ", 1) for it in commands.split("; ") if it.strip()),
        re.findall(r"`(.*?)`", tests),
        page.partition("]")[0].strip("["),
    )


_TABLE = Path(__file__).with_name("families.md").read_text()
FAMILIES = {it.name: it for it in map(_row, _TABLE.splitlines()[2:])}
"""All rows, by their names."""
COMMANDS = dict(sorted(item for it in FAMILIES.values() for item in it.commands.items()))
"""What each command of `python -m dali_storage` does."""
