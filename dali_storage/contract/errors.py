"""The errors and warnings of this package, for callers to catch.

    Exception
    ├── OSError
    │   ├── SampleChangedError      a file's size changed each time it was read
    │   ├── ContainerChangedError   a container no longer matches its index, or changed while open
    │   │   └── ObjectReplacedError     an object in a store was replaced after listing
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
    │   ├── MemoryIsShort           batches too large for the free memory: none is read ahead
    │   ├── NotMapped               containers that are read instead of mapped
    │   ├── NotPageLocked           buffers that DALI has to copy before a GPU can read them
    │   ├── SampleReplaced          the first bad sample, replaced by another sample
    │   └── UntestedDali            a DALI newer than the versions tested with this package
    └── SampleSizeChanged           from a reader to the prefetcher; never reaches a user

All other failures come from the operating system, as Python's `OSError(errno, strerror, path)`: a
missing file is a `FileNotFoundError` whose `filename` is its path.
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ._types import IntArray


class BackendUnavailable(RuntimeError):  # noqa: N818  (a fact about the machine)
    """A backend cannot work on this machine.

    Attributes:
        reason: the missing library or device, or the missing permission.
        remedy: the command or setting that helps; empty if there is none.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy


class _StaleError(OSError):
    _what: tuple[str, ...] = ()

    def __init__(self, path: bytes | str | int, *what: str) -> None:
        """`what` is the difference, and the remedy."""
        if isinstance(path, bytes):
            what = "; ".join(what or self._what), os.fsdecode(path)
            path = errno.ESTALE
        super().__init__(path, *what)  # of one text, or again of what `pickle` and `copy` give


class SampleChangedError(_StaleError):
    """The size of a sample, whose path is `filename`, changed each time it was read."""

    _what = ("the file keeps changing its size while it is read",)


class ContainerChangedError(_StaleError):
    """A container, whose path is `filename`, differs from the indexed or opened one.

    The batch with this error has delivered no bytes of the container.
    """


class ObjectReplacedError(ContainerChangedError):
    """An object, whose URL is `filename`, was replaced after listing. No byte was delivered.

    Containers in object stores raise this subclass of `ContainerChangedError`, so one `except`
    catches both.
    """


class RecordError(ValueError):
    """The bytes of a sample are not valid in its format.

    Attributes:
        filename: the path of its file.
    """

    def __init__(self, path: bytes | str, what: str = "") -> None:
        """`what` names the sample, the defect and the remedy."""
        self.filename = None if isinstance(path, str) else os.fsdecode(path)
        super().__init__(path if self.filename is None else f"{self.filename!r}: {what}")


class StaleMapError(_StaleError):
    """The extent map no longer matches the storage. No bytes of the sample were delivered.

    `filename` is the path of the sample, or of the device if another device was mapped.
    """


class CacheNotUsed(UserWarning):
    """A cache on a local disk cannot be read or written any more; objects come from their store."""


class ManifestLinesSkipped(UserWarning):
    """Manifest lines without a path, or not JSON objects, are skipped as in DALI's reader."""


class MapNotChecked(UserWarning):
    """The mapped file system is not mounted, so changes to its files cannot be detected."""


class MemoryIsShort(UserWarning):
    """The free memory has no room for the batches of a pipeline, so none is read ahead."""


class NotMapped(UserWarning):
    """Containers are read instead of mapped, so batches are copied."""


class NotPageLocked(UserWarning):
    """CUDA cannot page-lock the buffers, so DALI copies every sample that goes to the GPU."""


class SampleReplaced(UserWarning):
    """A sample is bad, and another one is given in its place. Only the first causes a warning."""


class UntestedDali(UserWarning):
    """DALI is newer than the versions tested with this package."""


class SampleSizeChanged(Exception):  # noqa: N818  (a signal to the caller, who reads again)
    """`Reader.read()` found samples whose size differs from the size in the batch.

    Attributes:
        samples: int64[k], their catalog indices.
    """

    def __init__(self, samples: IntArray) -> None:
        super().__init__(samples)
        self.samples = samples

    def __str__(self) -> str:
        return f"samples {self.samples.tolist()} have changed their size"


LIMITS = {
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the limit of open files of this machine (sysctl fs.file-max)",
    errno.ENOMEM: "raise the memory limits of this process (ulimit -l, ulimit -v), or free memory",
}
"""The remedy for an exhausted resource, by errno."""


def os_error(number: int, path: bytes, hint: str = "") -> OSError:
    """Make the `OSError` of errno `number` for `path`; `hint` is appended to the system's text."""
    if not hint and number in LIMITS:
        hint = f"; {LIMITS[number]}"
    # Like Python, and unlike DALI, text is encoded as the locale wants it.
    encoding = sys.getfilesystemencoding()
    if number == errno.ENOENT and encoding != "utf-8" and not path.isascii():
        hint += f" in {encoding}, the encoding of the locale; set PYTHONUTF8=1 for names in UTF-8"
    return OSError(number, os.strerror(number) + hint, os.fsdecode(path))


@contextmanager
def encodable() -> Iterator[None]:
    """Tell the remedy if a path of the block has characters that the locale's encoding lacks."""
    try:
        yield
    except UnicodeEncodeError as error:
        what = f"{error.object!r} has characters that {error.encoding}, the encoding of the locale,"
        raise ValueError(f"{what} lacks; set PYTHONUTF8=1") from None


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
