"""Tests of libxnvme's asynchronous implementations on this machine, and their errors."""

import os

from ...contract.errors import LIMITS, BackendUnavailable
from .file_queue import IOS, FileQueue
from .library import Library, load

_REMEDIES = {
    "io_uring": "io_uring may be forbidden (sysctl kernel.io_uring_disabled, or the seccomp "
    "profile of a container), or libxnvme was built without liburing",
    "libaio": "kernel AIO may be used up (sysctl fs.aio-max-nr) or forbidden by the seccomp "
    "profile of a container, or libxnvme was built without libaio",
}


def unavailable() -> BackendUnavailable | None:
    """The reason why the default implementation fails here, with alternatives; None if it works."""
    try:
        library = load()
    except BackendUnavailable as reason:
        return reason.with_traceback(None)
    default, *others = IOS
    if (failure := _failure(library, default)) is None:
        return None
    works = ", ".join(repr(io) for io in others if _failure(library, io) is None)
    return not_offered(library, default, f"{failure}; it offers {works or 'no other'}")


def not_offered(library: Library, io: str, reason: object) -> BackendUnavailable:
    """The error for an implementation that does not work here."""
    remedy = f"{_REMEDIES[io]}; " if io in _REMEDIES else ""
    what = f"{library} does not offer the io {io!r} here: {reason}"
    return BackendUnavailable(what, f"{remedy}`python -m dali_storage` shows what works")


def limit_reached(error: OSError, path: str | None = None) -> OSError | None:
    """The error to raise if `error` is due to a limit of the process or the machine, else None."""
    if error.errno not in LIMITS:
        return None
    hint = f"{LIMITS[error.errno]}, or use fewer or shallower queues (queue_depth)"
    return OSError(error.errno, f"{os.strerror(error.errno)}: {hint}", path)


def _failure(library: Library, io: str) -> Exception | None:
    try:
        FileQueue(library, io, 1).close()
    except (OSError, BackendUnavailable) as error:
        return error
    return None
