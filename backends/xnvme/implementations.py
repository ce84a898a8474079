"""Which asynchronous implementations a libxnvme offers on this machine."""

from __future__ import annotations

import os

from ...errors import LIMITS, BackendUnavailable
from .file_queue import IOS, FileQueue
from .library import Library, load

_REMEDIES = {
    "io_uring": "io_uring may be forbidden (sysctl kernel.io_uring_disabled, or the seccomp "
    "profile of a container), or libxnvme be built without liburing",
    "libaio": "kernel AIO may be used up (sysctl fs.aio-max-nr) or forbidden by the seccomp "
    "profile of a container, or libxnvme be built without libaio",
}


def unavailable() -> BackendUnavailable | None:
    """Why the default implementation does not work here; None if it does."""
    try:
        library = load()
    except BackendUnavailable as reason:
        return reason.with_traceback(None)
    try:
        FileQueue(library, IOS[0], 1).close()
    except (OSError, BackendUnavailable) as error:
        return refusal(library, IOS[0], error)
    return None


def shortage(error: Exception, path: str | None = None) -> OSError | None:
    """What to raise where a limit of this process or machine was met; None if none was."""
    if not isinstance(error, OSError) or error.errno not in LIMITS:
        return None
    hint = f"{LIMITS[error.errno]}, or have fewer queues, or shorter ones (queue_depth)"
    return OSError(error.errno, f"{os.strerror(error.errno)}: {hint}", path)


def refusal(library: Library, io: str, error: Exception | str) -> BackendUnavailable:
    """What to tell about an implementation that does not work here, and about the others."""
    offered = [name for name in IOS if name != io and _works(library, name)]
    return BackendUnavailable(
        f"libxnvme {library.version} ({library.path}) does not offer the io {io!r} here: {error}; "
        f"it offers {', '.join(offered) or 'no other'}",
        _REMEDIES.get(io, ""),
    )


def _works(library: Library, io: str) -> bool:
    try:
        FileQueue(library, io, 1).close()
    except (OSError, BackendUnavailable):
        return False
    return True
