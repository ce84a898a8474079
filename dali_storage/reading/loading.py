"""The read of batches, in the calling thread: bytes into a leased buffer, then outputs."""

import contextlib
import copy
import os
import sys
import traceback
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import RecordError
from ..contract.format import Format, Wanted
from ..contract.reader import Reader
from ..contract.stages import enter
from ..contract.views import Contents, FindViews, SupportsHotViews, Views, copied, views_of
from ..order.sequence import Batches
from .batches import read_batch
from .buffers import BufferPool
from .slots import Substitute

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A batch after reading. Its buffer is reused when the last reference dies.

    Attributes:
        samples: int64[n], indices of delivered samples, see `Catalog`.
        nbytes: the sum of the pieces' sizes.
        outputs: the outputs of the format, each with n samples: slices of one leased buffer, or
            copies.
        asked: int64[n], the samples of the order, where others may take their place; else None.
    """

    samples: IntArray
    nbytes: int
    outputs: Sequence[Contents]
    asked: IntArray | None = None


class Loading:
    """Reads batches of a catalog; in any number of lanes, each with its own number.

    Attributes:
        catalog: the samples.
        reader: the backend.
        pool: the buffers of batches.
        views: the numbers of the outputs that may be the reader's own memory; False: only if the
            samples are a list.
        substitute: the handling of bad samples; a subclass does as it says.
    """

    substitute = Substitute()

    def __init__(
        self,
        catalog: Catalog,
        reader: Reader,
        fmt: Format,
        pool: BufferPool,
        views: Mapping[int, bool] = MappingProxyType({}),
    ) -> None:
        """`fmt` makes the outputs, in memory of the `pool`. Nobody writes to `views`."""
        self.catalog = catalog
        self.reader = reader
        self._format = fmt
        self.pool = pool
        self._wanted = (fmt if reader.reads_parts else Format()).wanted
        self._find_views = views_of(reader)
        self.views = views if self._find_views else {}

    def load(
        self, batches: Mapping[int, IntArray | Exception], lane: int, wanted: Container[int]
    ) -> dict[int, LoadedBatch | Exception]:
        """Read batches of one size in a lane, all at once; if this fails, the `wanted` one by one.

        So an error is that of its batch, and other batches have none. An error in place of samples
        stays. After an OSError the rest is missing: in an outage each may wait for a minute.
        """
        known = [it for it in batches.values() if isinstance(it, np.ndarray)]
        if 1 < len(known) == len(batches):
            found = outcome(partial(self._load_all, known, lane))
            if not isinstance(found, Exception):
                return dict(zip(batches, found, strict=True))
        loaded: dict[int, LoadedBatch | Exception] = {}
        for index, it in batches.items():
            if index in wanted:  # asked before each read
                # No local name for an error: it keeps this frame, and would keep itself.
                loaded[index] = (
                    it if isinstance(it, Exception) else outcome(partial(self.load_one, it, lane))
                )
                if isinstance(loaded[index], OSError):
                    break
        return loaded

    def load_one(self, samples: IntArray, lane: int) -> LoadedBatch:
        """Read a batch."""
        return self.read(samples, lane)[0]

    def _load_all(self, batches: Sequence[IntArray], lane: int) -> list[LoadedBatch]:
        samples = self.substitute.chosen(np.concatenate(batches))
        return self.read(samples, lane, len(batches))

    def read(self, samples: IntArray, lane: int, count: int = 1) -> list[LoadedBatch]:
        """Read exactly these samples, as `count` batches of one size."""
        pieces = self.catalog.pieces_of(samples)
        find = self._find_views if self.views else None
        viewed = self._view(find, samples, pieces, lane) if find else None
        sizes, outputs = viewed or self._read(samples, pieces, lane)
        nbytes: list[int] = sizes.reshape(count, -1).sum(axis=1).tolist()
        if count == 1:
            return [LoadedBatch(samples, nbytes[0], outputs)]
        step = samples.size // count
        parts = [slice(at, at + step) for at in range(0, samples.size, step)]
        each = [(samples[part], [output[part] for output in outputs]) for part in parts]
        return [LoadedBatch(its, n, parts) for (its, parts), n in zip(each, nbytes, strict=True)]

    def _read(
        self, samples: IntArray, pieces: IntArray, lane: int
    ) -> tuple[IntArray, Sequence[Contents]]:
        """Return the sizes of the pieces, and the outputs."""
        enter("opening", partial(_names, self.catalog, pieces))
        wanted = self._wanted(self.catalog, samples)
        batch = read_batch(self.reader, self.catalog, pieces, self.pool.lease, lane, wanted)
        views = Views(batch.buffer, batch.offsets, batch.sizes)
        enter("decoding")
        return views.sizes, self.outputs(samples, views, wanted)

    def _view(
        self, find: FindViews, samples: IntArray, pieces: IntArray, lane: int
    ) -> tuple[IntArray, Sequence[Contents]] | None:
        """As `_read()`, in the reader's own memory; None if the samples must be read."""
        enter("reading", partial(_names, self.catalog, pieces))
        if (views := find(pieces, lane)) is None:
            return None
        enter("decoding")
        outputs = enumerate(self.outputs(samples, views, None))
        enter("copying")
        return views.sizes, [it if self._stays(n, it) else copied(it) for n, it in outputs]

    def _stays(self, number: int, contents: Contents) -> bool:
        """Whether an output may be the reader's own memory."""
        in_any_form = self.views.get(number)
        return bool(in_any_form) or (in_any_form is False and not isinstance(contents, np.ndarray))

    def outputs(self, samples: IntArray, views: Views, wanted: Wanted | None) -> Sequence[Contents]:
        """Return the outputs of the format."""
        # By identity: a batch of whole samples may have equal sizes.
        if wanted is not None and views.sizes is wanted.sizes:
            return wanted.decode(views)
        return self._format.decode(self.catalog, samples, views)

    def close(self) -> None:
        """Close the reader and free its buffers."""
        self.reader.close()
        self.pool.clear()


class HotPath:
    """Reads batches in the asking thread: their samples are views, and reading does not block."""

    def __init__(self, loading: Loading, order: Batches) -> None:
        """Keep a copy of `order`."""
        self._loading = loading
        reader: object = loading.reader if loading.views else None
        self._hot = reader.hot if isinstance(reader, SupportsHotViews) else None
        # A copy, because the lanes' own order is not thread-safe, and goes ahead of this one.
        self._first = copy.deepcopy(order) if self._hot else order
        self._order: Batches | None = None

    def samples(self, index: int) -> tuple[IntArray, IntArray] | None:
        """Return a batch's samples, and the samples to read; None if the batch needs a lane."""
        if self._hot is None:
            return None
        # Put back when it is done: after a Ctrl-C it may be in the midst of a shuffle.
        order, self._order = self._order or copy.deepcopy(self._first), None
        try:
            samples = order.batch(index)
        except Exception:  # a lane finds it, too, and it may be that of a batch still to come
            return None
        self._order = order
        chosen = samples
        with contextlib.suppress(OSError, RecordError):  # a lane finds them, too
            chosen = self._loading.substitute.chosen(samples)
        is_hot = self._hot(self._loading.catalog.pieces_of(chosen))
        return (samples, chosen) if is_hot else None

    def read(self, samples: IntArray, chosen: IntArray) -> LoadedBatch | None:
        """Read what `samples()` returned; None if a bad one is to be replaced, as a lane does."""
        handled = sys.exception()
        try:
            # The number after the last lane's, so that it shares no lane's state.
            batch = self._loading.read(chosen, self._loading.reader.lanes)[0]
            return batch if chosen is samples else replace(batch, asked=samples)
        except Exception as error:
            clear_frames(error, handled)
            if not self._loading.substitute.handles(error):
                raise
        return None


def _names(catalog: Catalog, samples: IntArray) -> str:
    """Name the first of some samples, and count the others."""
    if not samples.size:
        return "no samples"
    path, more = os.fsdecode(catalog.path(int(samples[0]))), samples.size - 1
    return f"{path} and {more} more" if more else path


def outcome(call: Callable[[], _T]) -> _T | Exception:
    """Return what a call returns, or the error that it raises, which keeps no buffer."""
    try:
        return call()
    except Exception as error:
        clear_frames(error)
        return error


def clear_frames(error: BaseException | None, handled: BaseException | None = None) -> None:
    """Clear the frames of an error and of its causes: locals keep the buffer alive.

    Frames of an error that the caller has `handled`, and of earlier errors, are left alone.
    """
    while error is not handled and error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
