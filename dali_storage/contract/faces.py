"""Packages that hold names, and import the module of a name at its first use (PEP 562)."""

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def explained() -> Iterator[None]:
    """Raise `BackendUnavailable`, by `families`, where the block imports what is missing here."""
    try:
        yield
    except ModuleNotFoundError as error:
        from .families import explain

        explain(error)
        raise


class Face(ModuleType):
    """The class of such a package; see `hold_names()`."""

    _places: Mapping[str, str]
    _hints: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._places:
            what = f"module {self.__name__!r} has no attribute {name!r}{self._hints.get(name, '')}"
            raise AttributeError(what, name=name, obj=self)
        with explained():
            module = importlib.import_module(self._places[name], self.__name__)
        value = vars(module).get(name, module)  # itself, if it is a package
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import of a module binds its name here, which may be that of a function in it.
        if isinstance(value, ModuleType) and name in self._places:
            value = getattr(value, name, value)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        from .families import present

        return [*{*super().__dir__(), *present(self, self._places)}]


def hold_names(
    package: str, places: Mapping[str, str], hints: Mapping[str, str] | None = None
) -> None:
    """Let a package hold names; called in its `__init__`.

    Args:
        package: the name of the package.
        places: the names in each module, which is relative to the package; or a package itself. A
            module that has the name of a function in it is that function, in the package.
        hints: what to use in place of names that do not exist.
    """
    face = sys.modules[package]
    found = {name: module for module, names in places.items() for name in names.split()}
    vars(face).update(_places=found, _hints=dict(hints or {}))
    face.__class__ = Face
