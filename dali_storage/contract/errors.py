"""What can go wrong, and what a caller can catch.

    Exception
    ├── OSError
    │   ├── SampleChangedError      a file's size changed each time it was read
    │   ├── ContainerChangedError   a container no longer matches its index, or changed while open
    │   │   └── ObjectReplacedError     an object in a store is no longer the one that was listed
    │   └── StaleMapError           an extent map no longer matches the storage
    ├── RuntimeError
    │   └── BackendUnavailable      a library, device or permission is missing; how to get it
    ├── ValueError, TypeError       an argument is wrong or unknown; the message has its name
    │   ├── RecordError             the bytes of a sample are not of its format
    │   └── bmap_tools.MapFormatError   an invalid or inconsistent bmap.json
    ├── UserWarning
    │   ├── CacheNotUsed            a cache of objects that cannot be read or written
    │   ├── ManifestLinesSkipped    lines of a manifest that name no file
    │   ├── MapNotChecked           an extent map that cannot be compared with its files
    │   ├── NotMapped               containers that are read, although they were to be mapped
    │   ├── NotPageLocked           buffers that DALI has to copy before a GPU can read them
    │   ├── SampleReplaced          the first bad sample, in whose place another one is given
    │   └── UntestedDali            a DALI newer than those that this package was tested with
    └── SampleSizeChanged           from a reader to the prefetcher; never reaches a user

All other failures are those of the operating system, as the `OSError(errno, strerror, path)` that
Python raises: a missing file is a `FileNotFoundError` whose `filename` is its path.

DALI's dynamic mode raises the error of a call again, as `type(error)(text)` with the error as its
cause. So each class takes a text alone, in the place of a path in bytes; `filename` is then None.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ._types import IntArray


def _stale(path: bytes | str, what: str) -> tuple[str | int, ...]:
    """The arguments of an `OSError`."""
    return (path,) if isinstance(path, str) else (errno.ESTALE, what, os.fsdecode(path))


class BackendUnavailable(RuntimeError):  # noqa: N818  (a fact about the machine)
    """A backend cannot work on this machine.

    Attributes:
        reason: what is missing or forbidden.
        remedy: the command or setting that helps; empty if there is none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy


class SampleChangedError(OSError):
    """The size of a sample, whose path is `filename`, changed each time it was read."""

    def __init__(self, path: bytes | str) -> None:
        super().__init__(*_stale(path, "the file keeps changing its size while it is read"))


class ContainerChangedError(OSError):
    """A container, whose path is `filename`, is not the one that was indexed or opened.

    No bytes of it were delivered in the batch that raises this.
    """

    def __init__(self, path: bytes | str, what: str = "") -> None:
        """`what` is the difference, and what to do."""
        super().__init__(*_stale(path, what))


class ObjectReplacedError(ContainerChangedError):
    """An object, whose URL is `filename`, is not the one that was listed. No byte was delivered.

    Of a container it is what `ContainerChangedError` is of a file, so that one `except` has both.
    """


class RecordError(ValueError):
    """The bytes of a sample are not what its format says.

    Attributes:
        filename: the path of its file.
    """

    def __init__(self, path: bytes | str, what: str = "") -> None:
        """`what` names the sample, the defect and the remedy."""
        self.filename = None if isinstance(path, str) else os.fsdecode(path)
        super().__init__(path if self.filename is None else f"{self.filename!r}: {what}")


class StaleMapError(OSError):
    """The extent map no longer matches the storage. No bytes of the sample were delivered.

    `filename` is the path of the sample, or of the device if that is not the mapped one.
    """

    def __init__(self, path: bytes | str, what: str = "", remedy: str = "") -> None:
        """`what` is the difference, `remedy` the command or option that helps."""
        super().__init__(*_stale(path, f"{what}; {remedy}"))


class CacheNotUsed(UserWarning):
    """A cache on a local disk cannot be read or written any more. Objects come from their store."""


class ManifestLinesSkipped(UserWarning):
    """Lines of a manifest have no path, or are no JSON objects, and DALI's reader skips such."""


class MapNotChecked(UserWarning):
    """The mapped file system is not mounted, so changes to its files cannot be detected."""


class NotMapped(UserWarning):
    """A reader that was to map containers reads them, so batches are copied as without it."""


class NotPageLocked(UserWarning):
    """CUDA cannot page-lock the buffers, so DALI copies every sample that goes to the GPU."""


class SampleReplaced(UserWarning):
    """A sample is bad, and another one is given in its place. Told of the first one only."""


class UntestedDali(UserWarning):
    """DALI is newer than the versions that this package was tested with."""


class SampleSizeChanged(Exception):  # noqa: N818  (a signal to the caller, who reads again)
    """`Reader.read()` found samples whose size differs from the one in the batch.

    Attributes:
        samples: int64[k], their catalog indices.
    """

    def __init__(self, samples: IntArray) -> None:
        super().__init__(f"samples {samples.tolist()} have changed their size")
        self.samples = samples


INSTALL = "pip install 'dali-storage[cuda12]', or 'dali-storage[cuda13]'"
"""The remedy where DALI or CuPy is missing."""

LIMITS = {
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "raise the memory limits of this process (ulimit -l, ulimit -v), or free memory",
}
"""What to do about an exhausted resource, by errno."""


def os_error(number: int, path: bytes, hint: str = "") -> OSError:
    """The `OSError` of errno `number` for `path`; `hint` is appended to the system's text."""
    if not hint and number in LIMITS:
        hint = f"; {LIMITS[number]}"
    return OSError(number, os.strerror(number) + hint, os.fsdecode(path))


@contextmanager
def named(path: bytes | None = None, hint: str = "") -> Iterator[None]:
    """Raise every `OSError` of the block as `os_error()` does: with `path`, or its own, as text."""
    try:
        yield
    except OSError as error:
        about = os.fsencode(error.filename) if path is None else path
        # From Python 3.12 on, it would keep all callers and their buffers, in a cycle.
        error.__traceback__ = None
        raise os_error(error.errno or errno.EIO, about, hint) from None
