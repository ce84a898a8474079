"""Bad samples and their replacements."""

import errno
import json
import os
import threading
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog, open_regular
from ..contract.describing import described
from ..contract.errors import (
    ContainerChangedError,
    ObjectReplacedError,
    RecordError,
    SampleReplaced,
    StaleMapError,
    named,
)
from ..contract.format import Format, Wanted
from ..contract.objects import full_path, scheme
from ..contract.stages import enter
from ..contract.views import Contents, Views
from ..order.ordering import Ordering
from ..order.permutation import hashed
from ..reading.loading import LoadedBatch, Loading
from ..reading.opening import Members
from ..reading.slots import Substitute

_OF_A_FILE = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EIO, errno.EISDIR, errno.ENOTDIR),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.ENODATA, errno.ESTALE),
}
_OF_AN_OBJECT = {errno.ENOENT, errno.ESTALE}  # the others are those of the store
_ATTEMPTS = 16
_SHOWN = 3  # names in an error

Broken: TypeAlias = Callable[[Any, Callable[[], bytes]], str]
"""Explains why bytes are bad; "": good. May call for the name of the file, b"" for a container."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnError:
    """The handling of bad samples.

    Attributes:
        replace: True if another sample is delivered in place of a bad one.
        broken: detects bad bytes; None: bytes are not checked.
        most: the greatest number of bad samples. None: 10, or 0.1 % if this is more.
        record: the path of a file, which gets a line of JSON for each bad sample; "": no file.
        seed: the seed of the choice, the same on all ranks.
    """

    replace: bool = False
    broken: Broken | None = None
    most: int | None = None
    record: str = ""
    seed: int = 0

    def loading(self, catalog: Catalog, ordering: Ordering) -> Callable[..., Loading]:
        """See `Handling`.

        Raises:
            OSError: the record cannot be written.
        """
        kind = Replacement if self.replace else Checked
        return partial(Substituting, kind(catalog, self, ordering.members))


class Checked(Substitute):
    """Detects samples with bad bytes, which are errors."""

    def __init__(self, catalog: Catalog, on_error: OnError, members: Members | None = None) -> None:
        """`members`: by default all samples of the catalog."""
        self._catalog, self._on_error = catalog, on_error
        self._members = members or (lambda index: range(catalog.delivered))
        self.bad: dict[int, Exception] = {}

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples."""
        # A copy, because lanes add samples.
        return [(index, self._path(index), reason(it)) for index, it in [*self.bad.items()]]

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """Call `read` for `samples`; return the result."""
        return read(samples)

    def check(self, fmt: Format, samples: IntArray, outputs: Sequence[Contents]) -> None:
        """Raise `RecordError` at the first sample of a batch whose bytes are bad."""
        broken, catalog = self._on_error.broken, self._catalog
        if broken is None:
            return
        enter("checking")
        known = described(fmt, catalog)
        pairs = zip(known, outputs, strict=False)  # a ledger has one more output
        for number, (output, contents) in enumerate(pairs):
            which = number if len(known) == catalog.pieces else 0  # an output for each piece
            if output.dtype != np.uint8 or output.ndim not in (1, None) or not output.encoded:
                continue
            for index, item in zip(samples.tolist(), contents, strict=True):
                if memoryview(item).ndim != 1:
                    continue  # an image that is not encoded
                piece = index * catalog.pieces + which
                if what := broken(item, partial(self._name, piece)):
                    if catalog.ranges is not None and not catalog.ranges.sizes[piece]:
                        # A source of a mixture may have fewer pieces, and so no such one.
                        piece -= which if memoryview(item).nbytes else 0
                    where = f"{catalog.where(piece)}: " if catalog.ranges is not None else ""
                    raise RecordError(catalog.path(piece), where + what)

    def _name(self, piece: int) -> bytes:
        """Return the name of a whole file; b"" for a part of a container."""
        catalog, sizes = self._catalog, self._catalog.sizes
        if (ranges := catalog.ranges) is not None:
            if sizes is None and catalog.states is not None:
                sizes = catalog.states[:, 1]
            (file,) = ranges.files_of(np.array([piece]))
            # In a mixture, files are ranges, too.
            if sizes is None or ranges.starts[piece] or ranges.sizes[piece] != sizes[file]:
                return b""
        return catalog.name(piece)

    def _path(self, index: int) -> str:
        paths = self._catalog.paths(self._catalog.pieces_of(np.array([index])))
        told = os.fsencode(getattr(self.bad.get(index), "filename", b""))
        return full_path(told if told in paths else paths[0])


class Replacement(Checked):
    """The known bad samples of a catalog, and their replacements.

    A replacement is the same on all ranks, at any time: a pure function of the sample and of the
    set of bad samples. Used by all lanes.

    Attributes:
        bad: the errors of the bad samples, in the order of detection.
    """

    replaces = True

    def __init__(self, catalog: Catalog, on_error: OnError, members: Members | None = None) -> None:
        """`members`: by default all samples of the catalog.

        Raises:
            OSError: the record cannot be written.
        """
        super().__init__(catalog, on_error, members)
        most = on_error.most
        self._most = max(10, catalog.delivered // 1000) if most is None else most
        self._lock = threading.Lock()  # to add one
        if on_error.record:
            # Written to now: a wrong path is an error before the first batch.
            self._append(b"")

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """Call `read` for `samples`, with other samples in place of bad ones; return the result.

        Raises an error that concerns no sample, the error of a sample without a replacement, or the
        first error if there are too many.
        """
        failed = False
        while True:
            try:
                return read(self.chosen(samples))
            except Exception as error:
                if failed or not is_of_sample(error, self._catalog):
                    raise
                # One by one: the error of a batch names only its first bad sample.
                found = culprits(self._catalog, self.chosen(samples), read)
                # If each can be read alone, the batch gets one more chance.
                failed = not found
            self.add(found)

    def chosen(self, samples: IntArray) -> IntArray:
        """Return `samples`, or a copy with other samples in place of known bad ones."""
        if not self.bad or self.bad.keys().isdisjoint(wanted := samples.tolist()):
            return samples
        self._require_few()
        return np.array([self._instead(it) if it in self.bad else it for it in wanted], np.int64)

    def handles(self, error: Exception) -> bool:
        """See `Substitute`."""
        return is_of_sample(error, self._catalog)

    def add(self, found: Mapping[int, Exception]) -> None:
        """Note bad samples and their errors; raise the first error if there are too many."""
        with self._lock:
            for index, error in found.items():
                # Another lane may have noted it. Beyond the limit there is an error anyway.
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
        """Return the first good sample of a sequence that depends on the index only."""
        members = self._members(index)
        if (count := len(members)) < 2:
            raise self._error(index, "no other sample can take its place")
        place = members.index(index) if isinstance(members, range) else members.searchsorted(index)
        for attempt in range(_ATTEMPTS):
            # At least 1, so that no sample takes its own place.
            step = 1 + hashed(self._on_error.seed, index, attempt) % (count - 1)
            if (other := int(members[(int(place) + step) % count])) not in self.bad:
                return other
        raise self._error(index, f"and {_ATTEMPTS} samples in its place are bad, too; remove them")

    def _error(self, index: int, what: str) -> Exception:
        error, path = self.bad[index], self._path(index)
        if isinstance(error, OSError):
            return OSError(error.errno, f"{reason(error)}; {what}", path)
        return RecordError(os.fsencode(path), f"{reason(error)}; {what}")

    def _append(self, line: bytes) -> None:
        """Append to the record."""
        path = os.fsencode(self._on_error.record)
        with open_regular(path, "a") as file, named(path):
            # One call, so that processes may share the file.
            file.write(line)


class Substituting(Loading):
    """Reads batches with other samples in place of bad ones."""

    substitute: Checked

    def __init__(self, substitute: Checked, *arguments: Any, **named: Any) -> None:
        """See `Loading` for the other arguments."""
        super().__init__(*arguments, **named)
        self.substitute = substitute

    def load(
        self, batches: Mapping[int, IntArray | Exception], lane: int, wanted: Container[int]
    ) -> dict[int, LoadedBatch | Exception]:
        """See `Loading`."""
        found = super().load(batches, lane, wanted)
        for index, batch in found.items() if self.substitute.replaces else ():
            if isinstance(batch, LoadedBatch):
                found[index] = replace(batch, asked=cast("IntArray", batches[index]))
        return found

    def load_one(self, samples: IntArray, lane: int) -> LoadedBatch:
        """See `Loading`."""
        return self.substitute.read(samples, partial(self.read, lane=lane))[0]

    def outputs(self, samples: IntArray, views: Views, wanted: Wanted | None) -> Sequence[Contents]:
        """See `Loading`."""
        found = super().outputs(samples, views, wanted)
        self.substitute.check(self._format, samples, found)
        return found


def culprits(
    catalog: Catalog, samples: IntArray, read: Callable[[IntArray], object]
) -> dict[int, Exception]:
    """Find the samples that cannot be read alone, and their errors; raise any other error."""
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
    """Return True if an error is of a sample (with one of `paths`, if given), not the machine."""
    if isinstance(error, RecordError):
        return True
    if isinstance(error, ContainerChangedError):
        return isinstance(error, ObjectReplacedError) and catalog.ranges is None
    path = path_of(error)
    is_known = bool(path) and not isinstance(error, StaleMapError)
    return is_known and (not paths or path in paths)


def path_of(error: Exception) -> bytes:
    """Return the path of the file or object in an error of the system; b"" if none."""
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, bytes)):
        return b""
    path = os.fsencode(error.filename)
    return path if error.errno in (_OF_AN_OBJECT if scheme(path) else _OF_A_FILE) else b""


def reason(error: Exception) -> str:
    """Return the text of an error without the path."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error).removeprefix(f"{getattr(error, 'filename', '')!r}: ")
