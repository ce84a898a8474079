"""The readers as classes, for pipelines written with `nvidia.dali.ops`; see also `patch`."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import nvidia.dali as dali

from . import readers

__all__ = ["readers"]


@contextmanager
def swapped(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Replace DALI's readers by ours, see `dali_storage.patch`; the arguments are defaults."""
    with suppress(ImportError):  # not every DALI has it; it keeps the classes of its import
        importlib.import_module("nvidia.dali.experimental.dynamic")
    with ExitStack() as stack:
        for name in set(readers.__all__) & set(dir(dali.ops.readers)):
            now, ours = getattr(dali.ops.readers, name), getattr(readers, name)
            outer = now if ours in getattr(now, "__mro__", ()) else ours
            operator: Any = type(name, (outer,), {"defaults": {**outer.defaults, **arguments}})
            function = ours.reader.__name__
            stack.callback(setattr, dali.ops.readers, name, now)
            stack.callback(setattr, dali.fn.readers, function, getattr(dali.fn.readers, function))
            setattr(dali.ops.readers, name, operator)
            setattr(dali.fn.readers, function, operator.read)
        yield
