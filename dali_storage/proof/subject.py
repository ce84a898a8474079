"""The data set for both readers, and the meaning of their errors."""

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

from nvidia.dali import fn

from .. import readers
from ..bad_samples.replacement import path_of
from ..contract import registry
from ..contract.catalog import Catalog, join_path
from ..contract.errors import BackendUnavailable, ObjectReplacedError, RecordError, StaleMapError
from ..contract.objects import scheme
from ..dali.comparing import Read, Row
from ..dali.queries import failure
from ..readers.batches import ReaderBatch, ReaderBatches, batches
from ..readers.files import file
from ..samples.finding import root_of
from ..samples.locations import is_index, location

_SAMPLES, _BYTES, _TIME = 32, 16 << 20, 0.02  # limits of a batch; a part of the remaining time


class CannotCompareError(RuntimeError):
    """A comparison without a result, because of DALI's reader, the machine, or another writer."""


class DiffersError(Exception):
    """A failure of our reader on a data set readable by DALI."""


class Subject:
    """A data set, and the arguments of our reader.

    Attributes:
        backend: the name of our reader's backend.
        call: the name of both readers.
        arguments: those of both readers.
        total: the number of samples in containers.
        samples: the catalog of our reader; None before the reader is made.
        size: the mean of the samples' bytes, about.
        pace: seconds of both readers together for a sample.
    """

    samples: Catalog | None = None
    total = 0
    size = 4e6
    pace = 0.0

    def __init__(
        self,
        root: str,
        backend: str | None,
        options: Mapping[str, Any],
        filters: Mapping[str, Any],
        seconds: float,
        call: str = "file",
        files: Sequence[str] = (),
    ) -> None:
        """Both readers are the `call`; all but `file` are given `filters` only, and have `files`.

        `filters`: of `readers.file`. `seconds`: the time for the whole comparison.

        Raises:
            ValueError, TypeError: an argument is wrong.
            BackendUnavailable: the backend needs a package.
            OSError: the directory cannot be listed.
        """
        self._end = time.monotonic() + seconds
        path = location("ROOT", root)
        if is_index(root):
            of = os.fsdecode(root_of(root))
            raise ValueError(f"ROOT {root!r} is an index, which DALI cannot read; give {of!r}")
        chosen = registry.choose(backend, [path])
        registry.configure(chosen, options)
        self.backend, self.is_remote = str(chosen), bool(scheme(path))
        self._root, self.arguments, self.call = root, filters, call
        if self.is_remote and not urlsplit(root).path.strip("/"):
            what = "DALI's own reader finds nothing in a bucket without a prefix"
            raise ValueError(f"cannot compare {root!r}: {what}; give {root.rstrip('/')}/PREFIX")
        self._ours: dict[str, Any] = {"backend": chosen, "backend_options": dict(options)}
        self._changed = dict[str, int]()  # when files and directories were changed last, in ns
        self._watch(files)
        if not (self.is_remote or files):
            with os.scandir(root) as entries:
                classes = [entry.path for entry in entries if entry.is_dir()]
            self._watch([root, *classes])
            self.size = mean(_sizes(classes) or [0])

    @property
    def seconds(self) -> float:
        """The remaining time."""
        return max(self._end - time.monotonic(), 0.0)

    def allow(self, seconds: float) -> None:
        """Set the time for the next check, and start its clock."""
        self._began, self._allowed = time.monotonic(), seconds

    def is_late(self, times: float = 1.0) -> bool:
        """Return whether the check has taken `times` its time."""
        return time.monotonic() - self._began >= times * self._allowed

    def affordable(self, part: float) -> int:
        """Return the number of samples for a part of the remaining time."""
        return int(self.seconds * part / max(self.pace, 1e-6))

    @property
    def at_once(self) -> int:
        """The largest number of samples in a batch."""
        return max(min(_SAMPLES, int(_BYTES / max(self.size, 1)), self.affordable(_TIME)), 1)

    def batch_size(self, share: int) -> int:
        """Choose a batch size for several batches in a shard, with a last one that is not full."""
        most = max(min(self.at_once, share // 4), 1)
        return next((it for it in range(most, 1, -1) if share % it), most)

    def reader(self, names: Sequence[str] | None = None, *, ours: bool) -> Read:
        """Make a reader, ours or DALI's: of all samples, or of `names`, labelled by their indices.

        With all samples, ours has a third output: the index.
        """
        given: dict[str, Any] = {"file_root": self._root}
        if self.call != "file":
            given = {**self.arguments}
        elif names is None:
            given |= {**self.arguments, **({"return_index": True} if ours else {})}
        else:
            given |= {"files": names, "labels": [*range(len(names))]}
        if ours:
            return partial(getattr(readers, self.call), name="ours", **given, **self._ours)
        # Without mmap, DALI accepts empty files, as ours does.
        return partial(getattr(fn.readers, self.call), name="theirs", dont_use_mmap=True, **given)

    def batches(self, names: Sequence[str], batch_size: int, **order: Any) -> ReaderBatches:
        """Open our reader without a pipeline; of files, `names` with labels as in `reader()`."""
        given: dict[str, Any] = {"batch_size": batch_size, "name": "ours", **self._ours, **order}
        if self.call != "file":
            return batches(getattr(readers, self.call), **self.arguments, **given)
        labels = [*range(len(names))]
        return batches(file, file_root=self._root, files=names, labels=labels, **given)

    def rows(self, batch: ReaderBatch) -> list[Row]:
        """Return the label and the CRC-32 of samples; of containers, the index is the label."""
        if self.call == "file":
            return [*zip(batch.labels.tolist(), map(zlib.crc32, batch.data), strict=True)]
        each = map(b"".join, values_of(batch))
        return [*zip(batch.index.tolist(), map(zlib.crc32, each), strict=True)]

    def name(self, number: int) -> str:
        """Return the name of a sample.

        Raises:
            CannotCompareError: the name is not UTF-8.
        """
        assert self.samples is not None
        name = self.samples.name(number)
        try:
            return name.decode()
        except UnicodeDecodeError:
            what = f"the name {name!r} is not UTF-8, as DALI's Python interface requires"
            raise CannotCompareError(f"{what}; rename it in a copy, and prove the copy") from None

    def names(self, numbers: Sequence[int]) -> list[str]:
        """Return the names of samples, and watch their files for changes."""
        names = [self.name(number) for number in numbers]
        if not self.is_remote:
            self._watch([self.path(name) for name in names])
        return names

    def path(self, name: str) -> str:
        """Return the path of a sample."""
        return os.fsdecode(join_path(os.fsencode(self._root), os.fsencode(name)))

    def require_at_rest(self) -> None:
        """Refuse a watched file or directory with changes.

        Raises:
            CannotCompareError: names the first change.
        """
        for path, changed in self._changed.items():
            if _changed(path) != changed:
                what = f"{path!r} has changed since the comparison began"
                raise CannotCompareError(f"{what}; compare while nobody writes to {self._root!r}")

    def _watch(self, paths: Sequence[str]) -> None:
        self._changed |= {path: _changed(path) for path in paths if path not in self._changed}

    @contextmanager
    def our_errors(self, *, opening: bool = False) -> Iterator[None]:
        """Turn errors of our reader into `DiffersError`, unless the machine is at fault.

        With `opening`, errors of wrong arguments stay as they are.
        """
        try:
            yield
        except (BackendUnavailable, MemoryError, CannotCompareError, ObjectReplacedError):
            raise
        except Exception as error:
            argument = opening and isinstance(error, (TypeError, ValueError))
            if argument and not isinstance(error, RecordError):
                raise
            below = path_of(error).startswith(os.fsencode(self._root))
            if isinstance(error, OSError) and not (below or isinstance(error, StaleMapError)):
                raise
            raise DiffersError(f"our reader fails: {type(error).__name__}: {error}") from None

    @contextmanager
    def their_errors(self) -> Iterator[None]:
        """Turn errors of DALI's reader into `CannotCompareError`."""
        try:
            yield
        except Exception as error:
            what = f"cannot compare {self._root!r}: DALI's own reader {failure(error)}"
            remedy = "give images in class directories, tars, or .npy files"
            raise CannotCompareError(f"{what}; {remedy}") from None


def values_of(batch: ReaderBatch) -> Iterator[tuple[Any, ...]]:
    """Yield the outputs of each sample."""
    outputs = batch.outputs if isinstance(batch.outputs, tuple) else (batch.outputs,)
    return zip(*outputs, strict=True)


def _sizes(classes: Sequence[str]) -> list[int]:
    """Return the sizes of a few files."""
    sizes = list[int]()
    for path in classes[:: len(classes) // 64 + 1]:
        with os.scandir(path) as entries:
            sizes += [entry.stat().st_size for entry in islice(entries, 8) if entry.is_file()]
    return sizes


def _changed(path: str) -> int:
    """Return the ctime of a file or directory, in ns; -1 for a missing one."""
    try:
        return os.stat(path).st_ctime_ns
    except OSError:
        return -1
