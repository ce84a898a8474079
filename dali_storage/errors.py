"""What can go wrong, and what a caller can catch.

    Exception
    ├── OSError
    │   ├── SampleChangedError      a file kept changing its size while it was read
    │   └── StaleMapError           an extent map does not describe what is there (any more)
    ├── RuntimeError
    │   └── BackendUnavailable      a library, device or permission is missing; how to get it
    ├── ValueError, TypeError       an option is wrong, or unknown; named in the message
    │   └── bmap_tools.MapFormatError   a bmap.json that cannot be believed
    ├── UserWarning
    │   └── MapNotChecked           nobody can tell whether an extent map is stale; said once
    └── SampleSizeChanged           from a reader to the prefetcher; never reaches a user

Everything else that fails is the operating system's, and arrives as the OSError that Python itself
would raise for it: `OSError(errno, strerror, path)`, so that a missing file is a FileNotFoundError
with its path as `filename`.
"""

from __future__ import annotations

import errno
import os

import numpy as np
import numpy.typing as npt


class BackendUnavailable(RuntimeError):  # noqa: N818  (a fact about the machine)
    """A backend cannot work on this machine; the message says what is missing and how to get it."""


class SampleChangedError(OSError):
    """A sample changed its size again when it was read once more; `filename` is its path."""

    def __init__(self, path: bytes) -> None:
        super().__init__(
            errno.ESTALE, "the file keeps changing its size while it is read", os.fsdecode(path)
        )


class StaleMapError(OSError):
    """An extent map and what it describes have parted company; nothing of the sample was given out.

    `filename` is the path of the sample, or of the device where that is not the mapped one.
    """

    def __init__(self, path: bytes, what: str, remedy: str) -> None:
        """`what` differs; `remedy` is the command or the option that helps."""
        super().__init__(errno.ESTALE, f"{what}; {remedy}", os.fsdecode(path))


class MapNotChecked(UserWarning):
    """The mapped file system is not mounted: if its files were changed, nothing here can see it."""


class SampleSizeChanged(Exception):  # noqa: N818  (a signal to the caller, who reads again)
    """`Reader.read()` found samples whose size is not the one it was told.

    Attributes:
        samples: int64[k], their catalog indices.
    """

    def __init__(self, samples: npt.NDArray[np.int64]) -> None:
        super().__init__(f"samples {samples.tolist()} are not of the size they had")
        self.samples = samples


LIMITS = {
    errno.EMFILE: "raise the limit of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "raise the limits of memory (ulimit -l, ulimit -v), or have more",
}
"""What to do where a process or a machine has come to its limits, by errno."""


def os_error(number: int, path: bytes, hint: str = "") -> OSError:
    """The OSError of errno `number` that names `path`; `hint` says what to do."""
    if not hint and number in LIMITS:
        hint = f"; {LIMITS[number]}"
    return OSError(number, os.strerror(number) + hint, os.fsdecode(path))
