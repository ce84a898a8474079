"""Our readers under DALI's names, see `dali_storage.patch`."""

import importlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import nvidia.dali as dali

from . import readers

_lock = threading.Lock()
_open = list[Mapping[str, Any]]()  # the arguments of the blocks that are open, in all threads
_before = dict[tuple[Any, str], Any]()  # what the names stood for before the first of them


@contextmanager
def swapped(arguments: Mapping[str, Any]) -> Iterator[None]:
    """Replace DALI's readers by ours; the arguments are defaults, also in blocks within."""
    with suppress(ImportError):  # not every DALI has it; it keeps the classes of its import
        importlib.import_module("nvidia.dali.experimental.dynamic")
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


def _set_names() -> None:
    """Have DALI's names stand for our readers or, with no block open, for what they did before."""
    defaults = {name: value for each in _open for name, value in each.items()}
    for name in set(readers.__all__) & set(dir(dali.ops.readers)):
        ours = getattr(readers, name)
        operator: Any = type(name, (ours,), {"defaults": defaults})
        for place, key, new in (
            (dali.ops.readers, name, operator),
            (dali.fn.readers, ours.reader.__name__, operator.read),
        ):
            before = _before.setdefault((place, key), getattr(place, key))
            setattr(place, key, new if _open else before)
    if not _open:
        _before.clear()
