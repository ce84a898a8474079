"""Choice of the engine that reads many files: kernel AIO, or preadv2 where AIO is missing."""

import warnings
from functools import partial
from typing import Literal, TypeAlias

from ...contract.errors import BackendUnavailable
from . import aio, preadv
from .reads import Read

Io: TypeAlias = Literal["aio", "preadv"]


def choose(backend: str, io: Io | None, depth: int) -> tuple[Io, Read]:
    """Choose a backend's engine for up to `depth` reads at once; return its name and function.

    None: "aio" where available, otherwise "preadv" with a RuntimeWarning at the line of the
    backend's caller.

    Raises:
        BackendUnavailable: the engine does not work on this machine.
    """
    chosen = io or "aio"
    if (reason := missing(chosen, depth)) is not None:
        if io is not None:
            other = "aio" if io == "preadv" else "preadv"
            remedy = f"{reason.remedy}; or use the python-file option io={other!r}"
            raise BackendUnavailable(reason.reason, remedy)
        if missing("preadv", depth) is not None:
            raise reason
        chosen, what = "preadv", f"{backend}: reading by preadv, which is slower: {reason}"
        # 4: this, the constructor, the check of its options, and the caller.
        warnings.warn(what, RuntimeWarning, stacklevel=4)
    return chosen, partial(aio.read, depth) if chosen == "aio" else preadv.read


def missing(io: str, depth: int) -> BackendUnavailable | None:
    """The reason why `io` does not work here; None if available."""
    return aio.unavailable(depth) if io == "aio" else preadv.unavailable()
