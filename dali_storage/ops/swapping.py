"""Our readers under DALI's names."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

import nvidia.dali as dali
from nvidia.dali.pipeline import do_not_convert

from ..contract.errors import BackendUnavailable
from ..readers.arguments import DaliArguments, refuse_unknown
from . import readers

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

_lock = threading.Lock()
_open = list[Mapping[str, Any]]()  # the arguments of the open blocks, in all threads
# By name: the class and the function before the first block, and our own within blocks.
_swaps = dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]]()


def patch(**arguments: Unpack[DaliArguments]) -> _GeneratorContextManager[None]:
    """Use our readers in code you cannot edit, as a context manager or a decorator.

    Replaces the readers of `nvidia.dali.fn.readers` and `nvidia.dali.ops.readers`, in the whole
    process, until the block ends; blocks may be nested or overlap. As a decorator, `patch()`
    goes above `@pipeline_def`. Not replaced: names imported before (`from nvidia.dali.fn.readers
    import file`), the deprecated `fn.file_reader` and the like, and the readers of dynamic mode.

    The arguments are those of all readers, such as `backend`, see `readers.file`: defaults for the
    calls in the block, which may override them. `backend_options` are the options of `backend`, by
    default python-file.

    Raises:
        TypeError: not an argument of all readers. The readers refuse wrong values.
    """
    refuse_unknown("patch", arguments, DaliArguments.__annotations__)
    return swapped(arguments)


@contextmanager
def swapped(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Replace DALI's readers by ours; the arguments are defaults, also in nested blocks."""
    for keeps in ("nvidia.dali.experimental.dynamic", "dali_storage.readers.features"):
        with suppress(ImportError):  # if present, imported now to keep DALI's own classes
            importlib.import_module(keeps)
    own = dict(arguments)
    try:
        with _lock:
            _open.append(own)
            _set_names()
        yield
    finally:
        with _lock:
            _open[:] = [each for each in _open if each is not own]
            _set_names()


def _function(operator: Any, real: Any) -> Any:
    """The reader as a function, with the marks and the name (for pickle) of DALI's, `real`."""

    @do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(operator.reader)
    def read(**given: Any) -> Any:
        return operator.read(**given)

    read.__module__ = "nvidia.dali.fn.readers"
    read._generated = getattr(real, "_generated", False)
    read._impl_module = getattr(real, "_impl_module", "nvidia.dali.fn")
    return read


def _set_names() -> None:
    """Set DALI's names to our readers or, with no block open, back to the earlier objects."""
    classes, functions = dali.ops.readers, dali.fn.readers
    for name in set(readers.__all__) & set(dir(classes)):
        try:
            ours = getattr(readers, name)
        except BackendUnavailable as error:  # refuses when it is used
            ours = readers.refusing(name, error)
        key = ours.reader.__name__
        if name not in _swaps:
            real = getattr(classes, name), getattr(functions, key)
            operator: Any = type(name, (ours,), {})
            _swaps[name] = real, (operator, _function(operator, real[1]))
        if _open:
            _swaps[name][1][0].defaults = dict(item for each in _open for item in each.items())
        operator, function = _swaps[name][bool(_open)]
        setattr(classes, name, operator)
        setattr(functions, key, function)
    if not _open:
        _swaps.clear()
