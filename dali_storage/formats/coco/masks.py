"""Masks of pixels, made of polygons and of run-length encodings (RLEs).

Polygons are drawn by the same C code as in DALI: COCO's maskApi.c, in the package pycocotools. The
labels of an image are merged as in DALI's loader/coco_loader.cc and pixel_mask.cc, with all their
oddities: a label with a polygon loses its RLEs; the last one of several RLEs of a label counts;
where labels overlap, the higher one wins, except in the last run of pixels; a run of no pixels ends
the merge; if the lowest label has no mask, all is 0.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.faces import explained
from .ragged import Ragged


class _Runs(NamedTuple):
    """Runs of pixels, column by column.

    Attributes:
        ends: int64[r], ascending: the number of pixels up to the end of each run.
        values: int32[r].
        stop: the position of a run of no pixels after the first run.
    """

    ends: IntArray
    values: NDArray[np.int32]
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Masks:
    """Makes the masks of n images.

    Attributes:
        sizes: int32[n, 2]: height and width.
        labels: int32, a row for each object.
        polygons, vertices: as in `Annotations`.
        rles: int32, a row for each RLE: the object in its sample.
        bounds: int64[k + 1]: RLE j is `runs[bounds[j]:bounds[j + 1]]`.
        runs: uint32: the lengths of runs of pixels, in turn outside and within the object.
        is_relative: whether vertices are fractions of the size.
    """

    sizes: NDArray[np.int32]
    labels: Ragged
    polygons: Ragged
    vertices: Ragged
    rles: Ragged
    bounds: IntArray
    runs: NDArray[np.uint32]
    is_relative: bool

    def of(self, sample: int) -> NDArray[np.int32]:
        """Return the labels of an image's pixels: shape (height, width, 1); 0 is no label."""
        height, width = self.sizes[sample].tolist()
        runs = self._runs_of(sample, height, width)
        labels = np.unique(self.labels.rows(sample)[0])
        merged = _Runs(np.empty(0, np.int64), np.empty(0, np.int32), 0)
        for number, label in enumerate(labels.tolist()):
            if number == 0 and label in runs:
                merged = _labelled(runs[label], label)
            elif label in runs:
                merged = _merge(merged, _labelled(runs[label], label))
        flat = np.zeros(width * height, np.int32)
        ends = merged.ends
        flat[: ends[-1] if ends.size else 0] = np.repeat(merged.values, np.diff(ends, prepend=0))
        return np.ascontiguousarray(flat.reshape(width, height).T)[:, :, None]

    def _runs_of(self, sample: int, height: int, width: int) -> dict[int, IntArray]:
        """Return the runs of each label with a mask."""
        labels = self.labels.rows(sample)[0].tolist()
        first, (objects,) = self.rles.starts[sample], self.rles.rows(sample)
        runs = dict[int, Any]()
        for number, owner in enumerate(objects.tolist(), first):
            runs[labels[owner]] = self.runs[self.bounds[number] : self.bounds[number + 1]]
        (vertices,) = self.vertices.rows(sample)
        if self.is_relative:
            vertices = vertices * np.array([width, height], np.float32)  # as in DALI: not exact
        polygons = dict[int, list[list[float]]]()
        for owner, start, end in self.polygons.rows(sample)[0].tolist():
            polygons.setdefault(labels[owner], []).append(vertices[start:end].ravel().tolist())
        drawn = {label: _draw(each, height, width) for label, each in polygons.items()}
        return runs | {label: decode(rle) for label, rle in drawn.items()}


def package() -> Any:
    """Import the package for drawing polygons; raise BackendUnavailable if missing."""
    with explained():
        return importlib.import_module("pycocotools.mask")


def _draw(polygons: list[list[float]], height: int, width: int) -> bytes:
    """Return the compressed RLE of all polygons (x, y, x, y ...) in an image."""
    # The first one decides the kind of all in pycocotools: 4 numbers would be a box.
    given = [[0.0] * 6, *(each or [0.0, 0.0] for each in polygons)]
    _, *drawn = package().frPyObjects(given, height, width)
    rle: bytes = package().merge(drawn)["counts"]
    return rle


def _labelled(runs: IntArray, label: int) -> _Runs:
    """Return the runs of an RLE, with a label for its pixels."""
    ends = np.cumsum(runs, dtype=np.int64)
    stops = ends[1:][np.asarray(runs[1:]) == 0]
    values = (np.arange(ends.size) % 2 * label).astype(np.int32)
    return _Runs(ends, values, int(stops[0]) if stops.size else int(ends[-1]))


def _merge(below: _Runs, above: _Runs) -> _Runs:
    """Put the runs `above` over the runs `below`."""
    stop = below.stop
    ends = np.sort(np.concatenate([below.ends, above.ends]))
    ends = ends[(np.diff(ends, prepend=0) > 0) & (ends <= stop)]
    lower = below.values[np.searchsorted(below.ends, ends)]
    upper = above.values[np.searchsorted(above.ends, ends)]
    values = np.where(upper != 0, upper, lower)
    if values.size and lower[-1]:  # DALI does not overwrite the last run
        values[-1] = lower[-1]
    return _Runs(ends, values, min(stop, above.stop))


def decode(text: bytes) -> NDArray[np.uint32]:
    """Decode a compressed RLE like rleFrString() of maskApi.c, but all runs at once.

    Each number is in groups of 5 bits, the lowest first, with the sign in the last one. From the
    fourth on, a number is the difference to the second number before. All is modulo 2**32.
    """
    codes = np.frombuffer(text, np.uint8).astype(np.int64) - 48
    last = codes & 0x20 == 0
    starts = np.append(0, np.flatnonzero(last)[:-1] + 1)
    place = 5 * (np.arange(codes.size) - np.repeat(starts, np.diff(starts, append=codes.size)))
    # The sign of a seventh group is shifted by 35 % 32 in C.
    sign = np.where(last & (codes & 0x10 != 0), -1 << (place + 5) % 32, 0)
    runs = np.bitwise_or.reduceat(((codes & 0x1F) << place) | sign, starts)
    runs[1::2] = np.cumsum(runs[1::2])
    runs[2::2] = np.cumsum(runs[2::2])
    return runs.astype(np.uint32)
