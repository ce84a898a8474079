"""The samples of `fn.readers.file` in a listing of objects, and their labels.

The rules follow DALI's discover_files_s3.cc and discover_files_gcs.cc, and differ from the rules
of directories: the order is the byte order of keys, so `a-b/x` comes before `a/x`, and a class gets
the next label when its first sample appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray
from ..contract.remote import Listing
from .patterns import NameFilter

_AT_ONCE = 1 << 16  # names that are Python objects at the same time


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples among the objects of a listing, in columns, in order.

    Attributes:
        objects: int64[n], indices in the listing.
        labels: int32[n].
        classes: the names of classes that pass the filter, in byte order of the keys.
    """

    objects: IntArray
    labels: npt.NDArray[np.int32]
    classes: list[bytes]


def choose_samples(
    listing: Listing, choose_classes: NameFilter, choose_files: NameFilter, *, alone: bool
) -> Samples:
    """Choose the objects `<class>/<file>` whose class and file pass their filters.

    Deeper objects are not samples, nor are markers of directories, whose names end with a slash.
    With `alone`, an object in no class is a sample: its name is both class and file, as in DALI for
    S3.
    """
    starts, stops = listing.offsets[:-1], listing.offsets[1:]
    text = np.frombuffer(listing.names, np.uint8)
    slashes = np.flatnonzero(text == ord("/"))
    first = np.searchsorted(slashes, starts)
    depth = np.searchsorted(slashes, stops) - first
    in_class = depth == 1
    cuts = stops.copy()
    cuts[in_class] = slashes[first[in_class]]
    files = np.where(in_class, cuts + 1, starts)
    objects = np.flatnonzero((in_class & (cuts > starts) | alone & (depth == 0)) & (files < stops))

    starts, cuts = starts[objects], cuts[objects]
    is_new = ~_same_as_before(text, starts, cuts - starts)
    group = np.cumsum(is_new) - 1  # of neighbours in one class
    names = _texts(listing.names, starts[is_new], cuts[is_new])
    classes = list(dict.fromkeys(choose_classes(names)))
    chosen = set(classes)
    passes = np.fromiter((name in chosen for name in names), bool, len(names))[group]
    objects, group = objects[passes], group[passes]
    passes = _pass(choose_files, listing.names, files[objects], stops[objects])
    objects, group = objects[passes], group[passes]

    # An object in no class may have the name of a class, so one class may be two groups.
    labels, of_class = np.zeros(len(names), np.int32), dict[bytes, int]()
    for each in np.unique(group).tolist():
        labels[each] = of_class.setdefault(names[each], len(of_class))
    return Samples(objects, labels[group], classes)


def select(listing: Listing, objects: IntArray) -> tuple[bytes, IntArray]:
    """Return the names of objects (int64[n], ascending) and their offsets, as in a `Catalog`."""
    lengths = np.diff(listing.offsets)
    if objects.size == lengths.size:
        return listing.names, listing.offsets
    wanted = np.zeros(lengths.size, bool)
    wanted[objects] = True
    names = np.frombuffer(listing.names, np.uint8)[np.repeat(wanted, lengths)].tobytes()
    return names, np.concatenate([[0], np.cumsum(lengths[objects])])


def _texts(names: bytes, starts: IntArray, stops: IntArray) -> list[bytes]:
    return [names[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]


def _pass(
    choose: NameFilter, names: bytes, starts: IntArray, stops: IntArray
) -> npt.NDArray[np.bool_]:
    """Return bool[n]: true for the names, between `starts` and `stops`, that pass a filter."""
    passes = np.ones(starts.size, bool)
    for first, last in pairwise([*range(0, starts.size, _AT_ONCE), starts.size]):
        part = _texts(names, starts[first:last], stops[first:last])
        chosen = choose(part)
        if len(chosen) < len(part):
            known = set(chosen)
            passes[first:last] = [name in known for name in part]
    return passes


def _same_as_before(
    text: npt.NDArray[np.uint8], starts: IntArray, sizes: IntArray
) -> npt.NDArray[np.bool_]:
    """Return bool[n]: true if the `sizes[i]` bytes from `starts[i]` equal the bytes of i - 1."""
    padded = np.concatenate([text, np.zeros(8, np.uint8)])
    words = np.ndarray(text.size + 1, "<u8", padded, strides=(1,))  # a word from each byte on
    same = np.zeros(starts.size, bool)
    same[1:] = sizes[1:] == sizes[:-1]
    for start in range(0, int(sizes.max(initial=0)), 8):
        rows = np.flatnonzero(same & (sizes > start))
        beyond = np.maximum(8 - (sizes[rows] - start), 0).astype(np.uint64)  # bytes of the word
        differ = words[starts[rows] + start] ^ words[starts[rows - 1] + start]
        same[rows] = differ << (beyond * np.uint64(8)) == 0
    return same
