"""Backends by name. A backend is a string until it is used.

A distribution offers backends by entry points of the group `dali_storage.backends`, name =
"module:ReaderClass"; ours does the same, in pyproject.toml. From a checkout that is not installed,
pyproject.toml itself is read.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from .catalog import Catalog, Tree
from .reader import Reader

GROUP = "dali_storage.backends"


def names() -> list[str]:
    """The names of all backends, sorted. Nothing is imported."""
    return sorted({point.name for point in _entry_points()})


def load(name: str) -> type[Reader]:
    """The class of backend `name`, imported now.

    Raises:
        ValueError: there is none of this name, or several distributions offer one.
        TypeError: what is offered is not a Reader.
        ImportError: the backend's module cannot be imported; passed through as it is.
    """
    offers = {point.value: point for point in _entry_points() if point.name == name}
    if not offers:
        raise ValueError(f"unknown backend {name!r}; known are {', '.join(names())}")
    if len(offers) > 1:
        raise ValueError(f"backend {name!r} is offered more than once: {', '.join(sorted(offers))}")
    (point,) = offers.values()
    backend = point.load()
    if not (isinstance(backend, type) and issubclass(backend, Reader)) or inspect.isabstract(
        backend
    ):
        raise TypeError(
            f"backend {name!r}: {point.value} is not a concrete subclass of dali_storage.Reader"
        )
    return backend


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend and the options for it. Nothing is open yet."""

    reader: type[Reader]
    options: Mapping[str, Any]

    def open(self, catalog: Catalog) -> Reader:
        """The reader of a catalog's samples; raises what the backend's constructor raises."""
        return self.reader(catalog, **self.options)

    def tree(self) -> Tree | None:
        """The samples that the storage itself knows, as `Reader.tree()`."""
        return self.reader.tree(**self.options)


def configure(name: str, options: Mapping[str, Any]) -> Backend:
    """Backend `name` with `options`. Nothing is opened here.

    Raises:
        TypeError: an option that the backend does not have, or one that it needs is missing; names
            it and those that it has.
        ValueError, ImportError: as `load()`.
    """
    backend = load(name)
    parameters = inspect.signature(backend).parameters.values()
    known = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    names = [parameter.name for parameter in known]
    has = f"its options are {', '.join(names)}" if names else "it has no options"
    unknown = [str(option) for option in options if option not in names]
    if unknown:
        raise TypeError(f"backend {name!r} has no option {', '.join(unknown)}; {has}")
    missing = [p.name for p in known if p.default is p.empty and p.name not in options]
    if missing:
        raise TypeError(f"backend {name!r} needs the option {', '.join(missing)}; {has}")
    return Backend(backend, dict(options))


def _entry_points() -> list[EntryPoint]:
    installed = list(entry_points(group=GROUP))
    try:
        distribution("dali-storage")
    except PackageNotFoundError:
        installed += _of_checkout()
    return installed


def _of_checkout() -> list[EntryPoint]:
    project = Path(__file__).resolve().parent.parent / "pyproject.toml"
    table = tomllib.loads(project.read_text())["project"]["entry-points"][GROUP]
    return [EntryPoint(name, value, GROUP) for name, value in table.items()]
