"""The choice of how many files are read at once: kernel AIO, or preadv2 where there is none."""

import warnings
from functools import partial
from typing import Literal, TypeAlias

from ...contract.errors import BackendUnavailable
from . import aio, preadv
from .reads import Read

Io: TypeAlias = Literal["aio", "preadv"]


def choose(backend: str, io: Io | None, depth: int) -> tuple[Io, Read]:
    """The way to read of a backend, up to `depth` files at once, and its function.

    None: "aio" where it works, otherwise "preadv" with a RuntimeWarning in the name of the caller
    of the backend.

    Raises:
        BackendUnavailable: it does not work on this machine.
    """
    chosen = _choose(backend, io, depth)
    return chosen, partial(aio.read, depth) if chosen == "aio" else preadv.read


def missing(io: str, depth: int) -> BackendUnavailable | None:
    """Why `io` does not work here; None if it does."""
    return aio.unavailable(depth) if io == "aio" else preadv.unavailable()


def _choose(backend: str, io: Io | None, depth: int) -> Io:
    reason = missing(io or "aio", depth)
    if reason is None:
        return io or "aio"
    if io is None and missing("preadv", depth) is None:
        what = f"{backend}: reading by preadv, which is slower: {reason}"
        warnings.warn(what, RuntimeWarning, stacklevel=5)  # the constructor's options are checked
        return "preadv"
    if io is None:
        raise reason
    other = "aio" if io == "preadv" else "preadv"
    remedy = f"{reason.remedy}; or use the python-file option io={other!r}"
    raise BackendUnavailable(reason.reason, remedy)
