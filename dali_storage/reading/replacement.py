"""Bad samples, and the others that are given in their place."""

import errno
import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from ..order.sampling.permutation import hashed

_OF_A_FILE = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ENOTDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.ENODATA, errno.ESTALE),
}
_OF_AN_OBJECT = {errno.ENOENT, errno.ESTALE}  # the others are those of the store
_ATTEMPTS = 16
_SHOWN = 3  # names in an error

Broken: TypeAlias = Callable[[Any, Callable[[], bytes]], str]
"""Why bytes are bad; "": they are not. It may ask for the name of the file, b"" of a container."""

Members: TypeAlias = Callable[[int], "IntArray | range"]
"""The delivered samples, ascending, among which one is that may take the place of a sample."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError:
    """What is done about bad samples.

    Attributes:
        replace: whether another sample is given in place of a bad one.
        broken: tells bad bytes; None: they are not checked.
        most: how many bad samples there may be. None: 10, or 0.1 % if that is more.
        record: the path of a file to which a line of JSON is appended for each; "" if to none.
        seed: of the choice, the same on all ranks.
    """

    replace: bool = False
    broken: Broken | None = None
    most: int | None = None
    record: str = ""
    seed: int = 0


def require_whole(
    catalog: Catalog, fmt: Format, samples: IntArray, outputs: Sequence[Contents], broken: Broken
) -> None:
    """Raise `RecordError` at the first sample of a batch whose bytes are bad."""
    for number, (described, contents) in enumerate(zip(fmt.outputs, outputs, strict=True)):
        which = number if len(fmt.outputs) == catalog.pieces else 0  # an output for each piece
        if described.dtype != np.uint8 or described.ndim not in (1, None):
            continue
        for index, item in zip(samples.tolist(), contents, strict=True):
            if memoryview(item).ndim != 1:
                continue  # an image that is not encoded
            piece = index * catalog.pieces + which
            name = bytes if catalog.ranges is not None else partial(catalog.name, piece)
            if what := broken(item, name):
                where = f"{catalog.where(piece)}: " if catalog.ranges is not None else ""
                raise RecordError(catalog.path(piece), where + what)


class Replacement:
    """The bad samples of a catalog that are known, and what takes their place.

    That is the same on all ranks, whoever finds a bad sample, and when: a pure function of the
    sample and of which others are bad. Used by all lanes.

    Attributes:
        bad: the errors of the bad samples, in the order in which they were found.
        only: the samples of which every batch consists, to find bad ones; None: as the order says.
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
        self.bad: dict[int, Exception] = {}
        self.only: IntArray | None = None
        self._lock = threading.Lock()  # to add one
        if on_error.record:
            self._append(b"")

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples."""
        return [(index, self._path(index), reason(it)) for index, it in [*self.bad.items()]]

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """What `read` returns for `samples`, or for others in place of those that are bad.

        If a batch fails, its samples are read one by one. Raises an error that is of no sample, or
        of one that cannot be replaced, or of the first if there are too many.
        """
        failed = False
        while True:
            try:
                return read(self.chosen(samples))
            except Exception as error:
                if failed or not is_of_sample(error, self._catalog):
                    raise
                found = culprits(self._catalog, self.chosen(samples), read)
                failed = not found  # it may succeed now
            self.add(found)

    def chosen(self, samples: IntArray) -> IntArray:
        """`samples`, or a copy with others in place of those that are known to be bad."""
        if not self.bad or self.bad.keys().isdisjoint(wanted := samples.tolist()):
            return samples
        self._require_few()
        return np.array([self._instead(it) if it in self.bad else it for it in wanted], np.int64)

    def add(self, found: Mapping[int, Exception]) -> None:
        """Note bad samples and their errors; raise that of the first if there are too many."""
        with self._lock:
            for index, error in found.items():
                if index in self.bad or len(self.bad) > self._most:
                    continue
                self.bad[index] = error
                path, what = self._path(index), reason(error)
                if self._on_error.record:
                    line = {"index": index, "path": path, "reason": what}
                    self._append(json.dumps(line).encode() + b"\n")
                if len(self.bad) == 1 <= self._most:
                    what = f"{path!r} is replaced by another sample: {what}"
                    warnings.warn(f"{what}; readers.replaced() lists all", SampleReplaced, 2)
        self._require_few()

    def _require_few(self) -> None:
        if (count := len(self.bad)) > self._most:
            others = [os.path.basename(path) for _, path, _ in self.found[1:_SHOWN]]
            also = f" (also {', '.join(others)})" if others else ""
            what = f"it is one of {count} bad samples{also}, and max_replaced is {self._most}"
            remedy = "python -m dali_storage check lists all"
            raise self._error(next(iter(self.bad)), f"{what}; {remedy}")

    def _instead(self, index: int) -> int:
        """The first good one of a sequence of samples that depends on the index only."""
        members = self._members(index)
        if (count := len(members)) < 2:
            raise self._error(index, "no other sample can take its place")
        place = members.index(index) if isinstance(members, range) else members.searchsorted(index)
        for attempt in range(_ATTEMPTS):
            step = 1 + hashed(self._on_error.seed, index, attempt) % (count - 1)
            if (other := int(members[(int(place) + step) % count])) not in self.bad:
                return other
        raise self._error(index, f"and {_ATTEMPTS} samples in its place are bad, too; remove them")

    def _error(self, index: int, what: str) -> Exception:
        error, path = self.bad[index], self._path(index)
        if isinstance(error, OSError):
            return OSError(error.errno, f"{reason(error)}; {what}", path)
        return RecordError(os.fsencode(path), f"{reason(error)}; {what}")

    def _path(self, index: int) -> str:
        paths = self._catalog.paths(self._catalog.pieces_of(np.array([index])))
        told = os.fsencode(getattr(self.bad.get(index), "filename", b""))
        return full_path(told if told in paths else paths[0])

    def _append(self, line: bytes) -> None:
        """By one call, so that processes may share the file."""
        path = self._on_error.record
        with named(os.fsencode(path)), open(path, "ab", 0) as file:
            file.write(line)


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
            error.__context__ = error.__cause__ = None  # they and the traceback keep buffers alive
            found[index] = error.with_traceback(None)
    return found


def is_of_sample(error: Exception, catalog: Catalog, paths: Sequence[bytes] = ()) -> bool:
    """Whether an error is of a sample, not of the machine; of one with these paths, if given."""
    if isinstance(error, RecordError):
        return True
    if isinstance(error, ContainerChangedError):
        return isinstance(error, ObjectReplacedError) and catalog.ranges is None
    path = path_of(error)
    is_known = bool(path) and not isinstance(error, StaleMapError)
    return is_known and (not paths or path in paths)


def path_of(error: Exception) -> bytes:
    """The path of the file or object that an error of the system is about; b"": of none."""
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, bytes)):
        return b""
    path = os.fsencode(error.filename)
    return path if error.errno in (_OF_AN_OBJECT if scheme(path) else _OF_A_FILE) else b""


def reason(error: Exception) -> str:
    """What an error says beside the path."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).removeprefix(f"{getattr(error, 'filename', '')!r}: ")
