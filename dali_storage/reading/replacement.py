"""Bad samples, and the others that are given in their place."""

import errno
import json
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import (
    ContainerChangedError,
    ObjectReplacedError,
    RecordError,
    SampleReplaced,
    StaleMapError,
    named,
)
from ..contract.format import Format
from ..contract.objects import full_path, scheme
from ..contract.views import Contents

_OF_A_FILE = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ENOTDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.ENODATA, errno.ESTALE),
}
_OF_AN_OBJECT = {errno.ENOENT, errno.ESTALE}  # the others are those of the store
_ATTEMPTS = 16
_SHOWN = 3  # names in an error
_MASK = 2**64 - 1

Members: TypeAlias = Callable[[int], "IntArray | range"]
"""The delivered samples, ascending, among which one is that may take the place of a sample."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError:
    """What is done about bad samples.

    Attributes:
        replace: whether another sample is given in place of a bad one.
        broken: why the bytes of a sample are bad, "" if they are not; it is given the name of the
            file, unless that is a container. None: bytes are not checked.
        most: how many bad samples there may be. None: 10, or 0.1 % if that is more.
        record: the path of a file to which a line of JSON is appended for each; "" if to none.
        seed: of the choice, the same on all ranks.
    """

    replace: bool = False
    broken: Callable[[Any, bytes], str] | None = None
    most: int | None = None
    record: str = ""
    seed: int = 0


class BrokenSamples(RecordError):  # noqa: N818  (a signal, as SampleSizeChanged)
    """Bytes are not those of whole samples.

    Attributes:
        found: the error of each of these samples, by its index.
    """

    def __init__(self, path: bytes, what: str, found: dict[int, Exception]) -> None:
        super().__init__(path, what)
        self.found = found


def require_whole(
    catalog: Catalog,
    fmt: Format,
    samples: IntArray,
    outputs: Sequence[Contents],
    broken: Callable[[Any, bytes], str],
) -> None:
    """Check the outputs of a batch that are bytes.

    Raises:
        BrokenSamples: some are not whole.
    """
    found: dict[int, Exception] = {}
    for described, contents in zip(fmt.outputs, outputs, strict=True):
        if described.dtype != np.uint8 or described.ndim != 1:
            continue
        for index, item in zip(samples.tolist(), contents, strict=True):
            name = b"" if catalog.ranges is not None else catalog.name(index)
            if what := broken(item, name):
                path = catalog.path(index * catalog.pieces)
                where = catalog.where(index * catalog.pieces)
                found[index] = RecordError(path, f"{where}: {what}" if where else what)
    for first in found.values():
        raise BrokenSamples(catalog.path(int(samples[0])), str(first), found)


class Replacement:
    """The bad samples of a catalog that are known, and what takes their place.

    That is the same on all ranks, whoever finds a bad sample, and when: a pure function of the
    sample and of which others are bad. Used by all lanes.
    """

    def __init__(self, catalog: Catalog, on_error: OnError, members: Members | None = None) -> None:
        """`members`: by default all samples of the catalog.

        Raises:
            OSError: the record cannot be written.
        """
        self._catalog, self._on_error = catalog, on_error
        self._members = members or (lambda index: range(catalog.delivered))
        most = on_error.most
        self._most = max(10, catalog.delivered // 1000) if most is None else most
        self._bad: dict[int, Exception] = {}
        self._lock = threading.Lock()  # to add one
        if on_error.record:
            self._append(b"")

    @property
    def count(self) -> int:
        """How many samples were found to be bad."""
        return len(self._bad)

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples, in the order in which they were found."""
        return [(index, self._path(index), reason(it)) for index, it in [*self._bad.items()]]

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """What `read` returns for `samples`, or for others in place of those that are bad.

        If a batch fails, its samples are read one by one.

        Raises:
            Exception: of `read`, if it is of no sample; or of a bad one, if there are too many.
        """
        failed = False
        while True:
            try:
                return read(self.chosen(samples))
            except Exception as error:
                if failed or not is_of_sample(error, self._catalog):
                    raise
                found = getattr(error, "found", None)
                found = found or culprits(self._catalog, self.chosen(samples), read)
                failed = not found  # it may succeed now
            self.add(found)

    def chosen(self, samples: IntArray) -> IntArray:
        """`samples`, or a copy with others in place of those that are known to be bad.

        Raises:
            OSError, RecordError: nothing can take the place of one.
        """
        if not self._bad or self._bad.keys().isdisjoint(wanted := samples.tolist()):
            return samples
        self._require_few()
        return np.array([self._instead(it) if it in self._bad else it for it in wanted], np.int64)

    def add(self, found: dict[int, Exception]) -> None:
        """Note bad samples, and their errors.

        Raises:
            OSError, RecordError: these are too many.
        """
        with self._lock:
            for index, error in found.items():
                if index in self._bad or len(self._bad) > self._most:
                    continue
                # Without what would keep buffers alive.
                self._bad[index] = error.with_traceback(None)
                error.__context__ = error.__cause__ = None
                line = {"index": index, "path": self._path(index), "reason": reason(error)}
                if self._on_error.record:
                    self._append(json.dumps(line).encode() + b"\n")
                if len(self._bad) == 1 <= self._most:
                    what = f"{self._path(index)!r} is replaced by another sample: {reason(error)}"
                    warnings.warn(f"{what}; readers.replaced() lists all", SampleReplaced, 2)
        self._require_few()

    def _require_few(self) -> None:
        if (count := len(self._bad)) > self._most:
            others = [os.path.basename(path) for _, path, _ in self.found[1:_SHOWN]]
            also = f" (also {', '.join(others)})" if others else ""
            what = f"it is one of {count} bad samples{also}, and max_replaced is {self._most}"
            remedy = "python -m dali_storage check lists all"
            raise self._error(next(iter(self._bad)), f"{what}; {remedy}")

    def _instead(self, index: int) -> int:
        """The first good one of a sequence of samples that depends on the index only."""
        members = self._members(index)
        if (count := len(members)) < 2:
            raise self._error(index, "no other sample can take its place")
        place = members.index(index) if isinstance(members, range) else members.searchsorted(index)
        for attempt in range(_ATTEMPTS):
            step = 1 + _mixed(self._on_error.seed, index, attempt) % (count - 1)
            if (other := int(members[(int(place) + step) % count])) not in self._bad:
                return other
        raise self._error(index, f"and {_ATTEMPTS} samples in its place are bad, too; remove them")

    def _error(self, index: int, what: str) -> Exception:
        error, path = self._bad[index], self._path(index)
        if isinstance(error, OSError):
            return OSError(error.errno, f"{reason(error)}; {what}", path)
        return RecordError(os.fsencode(path), f"{reason(error)}; {what}")

    def _path(self, index: int) -> str:
        return full_path(self._catalog.path(index * self._catalog.pieces))

    def _append(self, line: bytes) -> None:
        """In one call, so that processes may share the file."""
        path = self._on_error.record
        with named(os.fsencode(path)):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)


def culprits(
    catalog: Catalog, samples: IntArray, read: Callable[[IntArray], object]
) -> dict[int, Exception]:
    """The samples that cannot be read alone, and their errors; raises any other error."""
    found: dict[int, Exception] = {}
    for index in dict.fromkeys(samples.tolist()):
        try:
            read(np.array([index]))
        except Exception as error:
            pieces = catalog.pieces_of(np.array([index]))
            if not is_of_sample(error, catalog, catalog.paths(pieces)):
                raise
            found[index] = getattr(error, "found", {}).get(index, error)
    return found


def is_of_sample(error: Exception, catalog: Catalog, paths: Sequence[bytes] = ()) -> bool:
    """Whether an error is of a sample, not of the machine; of one with these paths, if given."""
    if isinstance(error, RecordError):
        return True
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, bytes)):
        return False
    path = os.fsencode(error.filename)
    if isinstance(error, ContainerChangedError):
        return isinstance(error, ObjectReplacedError) and catalog.ranges is None
    known = _OF_AN_OBJECT if scheme(path) else _OF_A_FILE
    is_known = error.errno in known and not isinstance(error, StaleMapError)
    return is_known and (not paths or path in paths)


def reason(error: Exception) -> str:
    """What an error says beside the path."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).removeprefix(f"{getattr(error, 'filename', '')!r}: ")


def _mixed(*words: int) -> int:
    """A number of 64 bits, by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = 0
    for word in words:
        mixed = ((mixed ^ word & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
        mixed ^= mixed >> 31
    return mixed
