"""Extent maps: the locations of many files' bytes on a block device. See docs/bmap.md.

A name is imported when it is first used: dali_storage uses `atomic` and `console` without maps. In
the order to read:

    extent_map   a map as values
    bmap_json    its form in JSON, by the rules of `checks` and `columns`
    format       loads and saves it, by `atomic`
    fiemap       asks the kernel for extents; `device` and `file_system` for the rest
    create       the command, by `walk`, `survey` and `inspection`
    verify       the command, by `comparison`
    show         the command
    console      the output of commands

Works without the rest of the project, on the standard library and NumPy. Nothing stays open.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bmap_json import MapFormatError
    from .extent_map import Device, ExtentMap, FileSystem
    from .format import load, save

__all__ = ["Device", "ExtentMap", "FileSystem", "MapFormatError", "load", "save"]

_PLACES = {"MapFormatError": ".bmap_json", "load": ".format", "save": ".format"}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            what = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(what, name=name, obj=sys.modules[__name__])
        module = importlib.import_module(_PLACES.get(name, ".extent_map"), __name__)
        return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return [*{*globals(), *__all__}]
