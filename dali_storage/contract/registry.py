"""Backends: a class, or the name of an entry point "module:ReaderClass" of `dali_storage.backends`.

Our entry points are in pyproject.toml, which is read directly in a checkout without installation.
Packages installed while a process runs are not found by the process.
"""

import functools
import inspect
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from .errors import BackendUnavailable
from .faces import explained
from .objects import scheme
from .options import require_options
from .reader import Reader

GROUP = "dali_storage.backends"
_DALI = "nvidia.dali"  # whose package has another name


def names() -> list[str]:
    """Return the names of all backends, sorted. Nothing is imported."""
    return sorted({point.name for point in _entry_points()})


def choose(backend: str | type[Reader] | None, names: Iterable[bytes]) -> str | type[Reader]:
    """Return the backend for these paths and URLs: the given one or, with None, the default.

    Raises:
        ValueError: the given backend does not read such URLs.
        Exception: as `load()`.
    """
    url = next(filter(scheme, names), b"")
    if backend is None:
        return "object-store" if url else "python-file"
    if url and scheme(url) not in getattr(load(backend), "schemes", ()):
        what = f"{shown(backend)} cannot read {os.fsdecode(url)!r}"
        raise ValueError(f"{what}; leave out backend, or use object-store")
    return backend


def shown(backend: object) -> str:
    """Describe a backend in messages: its name in quotes, or its class."""
    return f"backend {getattr(backend, '__qualname__', repr(backend))}"


def load(name: str | type[Reader]) -> type[Reader]:
    """Return the class of a backend; import the module for a name.

    Raises:
        ValueError: no distribution offers this backend, or several do.
        TypeError: the class, or the entry point, is not a reader class.
        BackendUnavailable: the backend needs a package that is not installed; the remedy is the
            command to install the package.
        Exception: an error of the backend's own module, with a note that names the entry point.
    """
    if not isinstance(name, str):
        return _require_reader(name, shown(name))
    offers = {point.value: point for point in _entry_points() if point.name == name}
    if not offers:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(names())}")
    if len(offers) > 1:
        raise ValueError(f"backend {name!r} is offered more than once: {', '.join(sorted(offers))}")
    (point,) = offers.values()
    try:
        with explained():
            backend = point.load()
    except BackendUnavailable:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and _is_package(error.name or "", point):
            from .families import install_dali

            what = f"backend {name!r} needs the package {error.name}, which is not installed"
            remedy = install_dali() if error.name == _DALI else f"pip install {error.name}"
            raise BackendUnavailable(what, remedy) from error
        error.add_note(_describe(point))
        raise
    return _require_reader(backend, f"backend {name!r}: {_describe(point)}")


def configure(name: str | type[Reader], options: Mapping[str, Any]) -> type[Reader]:
    """Return the class of a backend after checking `options`. Nothing is opened.

    Raises:
        TypeError: the backend has no such option, or a required one is missing; lists its options.
        ValueError, TypeError: an option has a wrong value.
        Exception: as `load()`.
    """
    backend = load(name)
    parameters = inspect.signature(backend).parameters.values()
    known = {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
    has = f"its options are {', '.join(known)}" if known else "it has no options"
    unknown = [str(option) for option in options if option not in known]
    if unknown:
        raise TypeError(f"{shown(name)} has no option {', '.join(unknown)}; {has}")
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in options]
    if missing:
        raise TypeError(f"{shown(name)} needs the option {', '.join(missing)}; {has}")
    require_options(backend.__init__, options)
    return backend


def _is_package(module: str, point: EntryPoint) -> bool:
    """Return True if a missing module is an installable package, not a typo or a broken package."""
    own = ("dali_storage", "bmap_tools", point.module.partition(".")[0])
    return module == _DALI or (module not in ("", *own) and "." not in module)


def _require_reader(backend: object, what: str) -> type[Reader]:
    # Whatever else is wrong, Python says when the class is called.
    if isinstance(backend, type) and issubclass(backend, Reader):
        return backend
    raise TypeError(f"{what} is not a subclass of dali_storage.Reader")


def _describe(point: EntryPoint) -> str:
    origin = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
    return f"entry point {point.value}{origin}"


def _entry_points() -> list[EntryPoint]:
    return _installed(tuple(sys.path))


@functools.cache  # 3 ms for every reader, where 130 distributions are installed
def _installed(_: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of the distributions on this `sys.path`."""
    installed = list(entry_points(group=GROUP))
    try:
        distribution("dali-storage")
    except PackageNotFoundError:  # a checkout
        project = Path(__file__).resolve().parents[2] / "pyproject.toml"
        table = tomllib.loads(project.read_text())["project"]["entry-points"][GROUP]
        installed += [EntryPoint(name, value, GROUP) for name, value in table.items()]
    return installed
