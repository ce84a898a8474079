"""Samples of several formats in one catalog, each decoded by the format of its source."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog, open_regular
from ..contract.describing import described
from ..contract.format import Format, Output
from ..contract.objects import scheme
from ..contract.ranges import Ranges
from ..contract.views import SMALL, Contents, Views
from .files import Files, noting_states, sizes
from .kinds import ArrayKind

_LABEL = Output(np.dtype(np.int32))

_Part: TypeAlias = tuple[str, IntArray, Contents]
"""The name of a source, the slots of its samples in a batch, and an output of them."""


class Parts(NamedTuple):
    """The sources of a catalog, in their order; the entry "parts" of its sidecar.

    Attributes:
        firsts: int64[k], the first delivered sample of each.
        catalogs: the samples of each, as its own format needs them.
        outputs: the type of each; None if no source knows it before it is read.
    """

    firsts: IntArray
    catalogs: Sequence[Catalog]
    outputs: Sequence[Output]


class MixedFormat(Format):
    """The outputs of several formats: equally many, and alike."""

    operator = "mix"
    named = ()

    def __init__(self, formats: Mapping[str, Format], *, labels: bool = True) -> None:
        """`formats`: by the names of the sources. `labels`: whether labels are outputs.

        If only some catalogs have labels, the labels are the last outputs of their formats.

        Raises:
            ValueError: the sources have other numbers of outputs.
        """
        self.labels = labels and all(it.labels for it in formats.values())
        self._formats = formats
        self._labelled = {name for name, it in formats.items() if it.labels and labels}
        self._labelled -= formats.keys() if self.labels else set()
        counts = {name: len(its) for name, its in self._outputs({}).items()}
        if len({*counts.values()}) > 1:
            told = ", ".join(f"{count} in {name!r}" for name, count in counts.items())
            labelled = "; a label is one, unless labels='drop'" if self._labelled else ""
            raise ValueError(f"sources must have equally many outputs, not {told}{labelled}")
        self.outputs = [Output(None, None)] * next(iter(counts.values()))
        self._lock = threading.Lock()  # of lanes
        self._first = dict[int, ArrayKind]()  # of each output

    def joinable(self, sources: Mapping[str, Catalog], files: Files) -> dict[str, Catalog]:
        """Return the samples of each source as ranges, with the same number of pieces.

        Whole files become ranges of the size that they have now. Further pieces are empty.

        Raises:
            OSError: the size of a file or an object cannot be found.
        """
        pieces = max(it.pieces for it in sources.values())
        found = {}
        for name, each in sources.items():
            ranged = _ranged(each, files)
            found[name] = replace(
                ranged,
                ranges=_padded(ranged, pieces),
                pieces=pieces,
                labels=each.labels if self.labels else each.labels[:0],
                source_info=(),
            ).knowing(each.checksum())
        return found

    def parts(self, sources: Mapping[str, Catalog]) -> Parts:
        """Return what `decode()` needs to know of the sources.

        Raises:
            ValueError: the sources have outputs that are not alike.
        """
        known = self._outputs(
            {name: described(fmt, sources[name]) for name, fmt in self._formats.items()}
        )
        columns = enumerate(zip(*known.values(), strict=True))
        outputs = [
            _common(number, dict(zip(known, column, strict=True))) for number, column in columns
        ]
        counts = np.array([it.delivered for it in sources.values()])
        return Parts(counts.cumsum() - counts, [*sources.values()], outputs)

    def described(self, catalog: Catalog) -> Sequence[Output]:
        """See `Describes`."""
        parts: Parts = catalog.sidecar["parts"]
        return parts.outputs

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """See `Format`; an error has a note with the name of the source."""
        parts: Parts = catalog.sidecar["parts"]
        owners = parts.firsts.searchsorted(delivered, "right") - 1
        found: list[tuple[str, IntArray, Sequence[Contents]]] = []
        for number, (name, fmt) in enumerate(self._formats.items()):
            slots = np.flatnonzero(owners == number)
            if not slots.size:
                continue
            own, its = parts.catalogs[number], delivered[slots] - parts.firsts[number]
            rows = (slots[:, None] * catalog.pieces + np.arange(own.pieces)).ravel()
            some = Views(views.buffer, views.offsets[rows], views.sizes[rows])
            try:
                outputs = fmt.decode(own, its, some)
            except Exception as error:
                error.add_note(f"in source {name!r} of readers.mix")
                raise
            labels = [own.labels[its, None]] if name in self._labelled else []
            found.append((name, slots, [*outputs, *labels]))
        return [
            self._merged(number, dtype, [(name, slots, its[number]) for name, slots, its in found])
            for number, (dtype, *_) in enumerate(parts.outputs)
        ]

    def _merged(self, number: int, dtype: np.dtype[Any] | None, parts: Sequence[_Part]) -> Contents:
        """Put an output of several sources into the slots of their batch."""
        firsts = {name: _array(contents[0]) for name, _, contents in parts}
        first = next(iter(firsts.values()))
        # DALI accepts one kind in all batches, of which some may have samples of one source only.
        with self._lock:
            wanted, ndim = self._first.get(number, (dtype or first.dtype, first.ndim))
            for it in firsts.values():
                is_same = _becomes(it.dtype, wanted) if dtype else it.dtype == wanted
                if not is_same or it.ndim != ndim:
                    raise _unlike(number, firsts, Output(wanted, ndim))
            self._first[number] = wanted, ndim  # not before: a wrong file may be corrected
        each = [(slots, _typed(contents, wanted)) for _, slots, contents in parts]
        count = sum(slots.size for slots, _ in each)
        arrays = [contents for _, contents in each if isinstance(contents, np.ndarray)]
        is_even = len(arrays) == len(each) and all(
            it.shape == first.shape for it in firsts.values()
        )
        if is_even and first.nbytes <= SMALL:
            array = np.empty((count, *first.shape), wanted)
            for slots, contents in each:
                array[slots] = contents
            return array
        items: list[Any] = [None] * count
        for slots, contents in each:
            for slot, item in zip(slots.tolist(), contents, strict=True):
                items[slot] = item
        return items

    def _outputs(self, known: Mapping[str, Sequence[Output]]) -> dict[str, Sequence[Output]]:
        """The outputs of each source, with the label where that is one of them."""
        return {
            name: [*known.get(name, fmt.outputs), *[_LABEL] * (name in self._labelled)]
            for name, fmt in self._formats.items()
        }


def _ranged(catalog: Catalog, files: Files) -> Catalog:
    """The samples of a catalog as ranges: whole files of the size that they have now."""
    if catalog.ranges is not None:
        return catalog
    if catalog.sizes is None and scheme(catalog.file_path(0)):
        found = files.catalog(catalog.file_paths(np.arange(catalog.file_count)))
        catalog = replace(catalog, sizes=found.sizes, versions=found.versions)
    catalog = noting_states(catalog)
    lengths = sizes(catalog)
    for file in np.flatnonzero(lengths == 0).tolist() if catalog.sizes is None else ():
        open_regular(catalog.file_path(file)).close()  # nothing is read of it: perhaps a pipe
    columns = np.arange(lengths.size), np.zeros_like(lengths), lengths
    return replace(catalog, ranges=Ranges.of_columns(*columns))


def _padded(catalog: Catalog, pieces: int) -> Ranges:
    """The ranges of a catalog, and empty ones after those of each sample."""
    ranges, own = catalog.ranges, catalog.pieces
    assert ranges is not None
    if own == pieces:
        return ranges
    every = np.arange(len(ranges)).reshape(-1, own)
    every = np.hstack([every, every[:, :1].repeat(pieces - own, axis=1)])
    lengths = ranges.sizes[every].astype(np.int64)
    lengths[:, own:] = 0
    rows = every.ravel()
    return Ranges.of_columns(ranges.files_of(rows), ranges.starts[rows], lengths.ravel())


def _common(number: int, outputs: Mapping[str, Output]) -> Output:
    """An output of several sources; of integers the widest type, but bytes are bytes."""
    dtypes = {it.dtype for it in outputs.values() if it.dtype is not None}
    if len(dtypes) > 1 and all(it.kind in "iu" and it.itemsize > 1 for it in dtypes):
        wide = np.result_type(*dtypes)
        dtypes = {wide} if wide.kind in "iu" else dtypes  # of int64 and uint64 it is float64
    if len(dtypes) > 1 or len({it.ndim for it in outputs.values()} - {None}) > 1:
        raise _unlike(number, outputs)
    is_encoded = all(it.encoded for it in outputs.values())
    return Output(next(iter(dtypes), None), None, encoded=is_encoded)


def _becomes(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values keep their meaning as the other type."""
    is_wider = dtype.kind in "iu" and dtype.itemsize > 1 and wanted.kind in "iu"
    return dtype == wanted or (is_wider and np.can_cast(dtype, wanted))


def _typed(contents: Contents, dtype: np.dtype[Any]) -> Contents:
    if isinstance(contents, np.ndarray):
        return contents.astype(dtype, copy=False)
    items: Sequence[Any] = contents
    return items if _array(items[0]).dtype == dtype else [_array(it).astype(dtype) for it in items]


def _array(item: Any) -> NDArray[Any]:
    return np.asarray(memoryview(item))


def _unlike(
    number: int, outputs: Mapping[str, Output | NDArray[Any]], wanted: Output | None = None
) -> ValueError:
    told = ", ".join(f"{_named(it)} in {name!r}" for name, it in outputs.items())
    before = "" if wanted is None else f", {_named(wanted)} as in the first batch"
    what = f"output {number} must be alike in all sources{before}, not {told}"
    return ValueError(f"{what}; choose other columns, or leave out labels by labels='drop'")


def _named(kind: Output | NDArray[Any]) -> str:
    ndim = "any" if kind.ndim is None else kind.ndim
    return f"{kind.dtype or 'of any type'} with {ndim} dimensions"
