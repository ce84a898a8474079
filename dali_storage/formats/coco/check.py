"""Checks a JSON file of annotations before DALI parses the file, and DALI's result afterwards.

DALI's parser stops silently at a value of an unexpected type, and loses the rest of the file. Some
values crash the parser, or make an endless loop. The rules follow DALI 2.4, loader/coco_loader.cc.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from ...contract._types import IntArray
from .options import CocoOptions
from .ragged import Ragged, row_numbers
from .scan import Entry, Scanner

_Rule: TypeAlias = tuple[str, Callable[[Any], Any], str]
"""A field, a check of its value, and a description of valid values."""

_MISSING = type("_Missing", (), {"__repr__": lambda _: "missing"})()
_NAME = re.compile(r"[^\n\0]+").fullmatch
# A compressed RLE: numbers of up to 7 characters, the last of which is below "P".
_RLE = re.compile(r"(?:[P-o]{0,6}[0-O])+").fullmatch
_NUMBERS = frozenset({int, float})


class Expected(NamedTuple):
    """The contents that DALI must find in annotations of n samples.

    Attributes:
        names: the samples, in their order. With `skip_empty`, DALI leaves out samples without
            objects.
        objects: int64[n], the least number of objects of each.
        labels: the labels of these objects, one sample after another.
        polygons: int64[n], the least number of polygons of each, if requested.
        unmasked: with masks of pixels, the place in the text behind the `{` of each annotation
            without a mask. DALI would take the kind of the mask before, and crash after an RLE.
    """

    names: list[bytes]
    objects: IntArray
    labels: IntArray
    polygons: IntArray
    unmasked: list[int]

    def lost(
        self, names: Sequence[bytes], objects: Ragged, polygons: Ragged | None
    ) -> bytes | None:
        """Return the name of a sample with missing objects or wrong labels in DALI, or None.

        The arguments are DALI's result; `objects` are boxes and labels.
        """
        rows = {name: row for row, name in enumerate(names)}
        found = np.array([rows.get(name, -1) for name in self.names])
        count = np.append(np.diff(objects.starts), 0)[found]
        wrong = count < self.objects
        if polygons is not None:
            wrong |= np.append(np.diff(polygons.starts), 0)[found] < self.polygons
        same = count == self.objects
        mine = self.labels[np.repeat(same, self.objects)]
        theirs = objects.columns[1][row_numbers(objects.starts[found[same]], count[same])]
        wrong[np.repeat(np.flatnonzero(same), count[same])[mine != theirs]] = True
        return self.names[int(np.argmax(wrong))] if wrong.any() else None


def check(about: str, text: str, options: CocoOptions) -> Expected:
    """Check a JSON file, an entry at a time; the text has a character for each byte (Latin-1).

    Raises:
        ValueError: the text is not JSON, is truncated, or has a value that DALI refuses or
            misreads; names the file (`about`), the entry, its id, the field and the value. Or there
            are no images, or not all images of the options.
    """
    scanner = Scanner(about, text)
    found = _Found(scanner, options)
    rules = {
        "images": (_image_rules(options), found.add_image),
        "categories": (_CATEGORY, found.add_category),
        "annotations": (_ANNOTATION + _mask_rules(options), found.add_object),
    }
    for entry in scanner.entries(rules):
        value = entry.value
        if type(value) is not dict:
            scanner.refuse(entry, f"it must be an object, not {_shown(scanner.real(entry))}")
        fields, add = rules[entry.kind]
        for field, is_right, wish in fields:
            if not is_right(value.get(field, _MISSING)):
                _refuse(scanner, entry, field, wish)
        add(entry)
    return found.expected()


class _Found:
    """The images, with unique ids and names, and the objects that DALI certainly keeps."""

    def __init__(self, scanner: Scanner, options: CocoOptions) -> None:
        self._scanner, self._options = scanner, options
        self._ids: dict[int, int] = {}  # of images: their numbers
        self._names: dict[bytes, int] = {}
        self._labels: dict[int, int] = {}  # of categories
        self._objects = array("i"), array("i"), array("i")  # image, category, polygons
        self._unmasked: list[int] = []
        # DALI compares in float32, so sizes near the threshold may be kept or not.
        self._least = options.size_threshold + abs(options.size_threshold) * 1e-6

    def add_object(self, entry: Entry) -> None:
        value = entry.value
        _, _, width, height = value["bbox"]
        is_kept = self._options.include_iscrowd or not value.get("iscrowd")
        given = value.get("segmentation")
        if self._options.pixelwise_masks and type(given) not in (dict, list):
            self._unmasked.append(entry.start + 1)
        if width >= self._least <= height and is_kept:
            images, categories, polygons = self._objects
            images.append(value["image_id"])
            categories.append(value["category_id"])
            polygons.append(len(given) if type(given) is list else 0)

    def add_category(self, entry: Entry) -> None:  # a repeated id keeps its first number
        self._labels.setdefault(entry.value["id"], entry.number + 1)

    def add_image(self, entry: Entry) -> None:
        value = self._scanner.real(entry)
        name = value["file_name"].encode("utf-8", "surrogateescape")
        for field, key, numbers in (
            ("id", value["id"], self._ids),
            ("file_name", name, self._names),
        ):
            if (first := numbers.setdefault(key, entry.number)) != entry.number:
                what = f"{field} {value[field]!r} is also in images[{first}]"
                self._scanner.refuse(entry, what, "make them unique")

    def expected(self) -> Expected:
        """Return the contents that DALI must find."""
        names, ids = [*self._names], np.fromiter(self._ids, np.int64)
        if not names:
            self._scanner.fail("it has no images", "use a file with images")
        by_id = np.argsort(ids)
        chosen = by_id if self._options.images is None else self._chosen(self._options.images)
        owners, labels, polygons = [np.asarray(it, np.int64) for it in self._objects]
        if not self._options.avoid_class_remapping:
            known, which = np.unique(labels, return_inverse=True)
            labels = np.array([self._labels.get(it, 0) for it in known.tolist()], np.int64)[which]
        found = np.searchsorted(ids, owners, sorter=by_id)
        found[found == ids.size] = 0
        rows = by_id[found]
        known = ids[rows] == owners  # objects of unknown images are left out
        rows, labels, polygons = rows[known], labels[known], polygons[known]
        count = np.bincount(rows, minlength=ids.size)
        polygons = np.bincount(rows, polygons, ids.size).astype(np.int64)
        starts = (np.cumsum(count) - count)[chosen]
        labels = labels[np.argsort(rows, kind="stable")][row_numbers(starts, count[chosen])]
        chosen_names = [names[row] for row in chosen.tolist()]
        return Expected(chosen_names, count[chosen], labels, polygons[chosen], self._unmasked)

    def _chosen(self, images: Sequence[bytes]) -> IntArray:
        if unknown := [name for name in images if name not in self._names]:
            what = f"images has {os.fsdecode(unknown[0])!r}, which is not a file_name in the file"
            self._scanner.fail(what, "correct images, or leave out images")
        return np.array([self._names[name] for name in images])


def _refuse(scanner: Scanner, entry: Entry, field: str, wish: str) -> NoReturn:
    """Refuse an entry for the value of a field."""
    found = scanner.real(entry).get(field, _MISSING)
    what, remedy = f"{field} must be {wish}, not {_shown(found)}", "correct the file"
    if field == "iscrowd" and type(found) is bool:
        remedy = f"write {found:d}"
    elif field == "segmentation" and type(found) is list:
        for number, polygon in enumerate(found):
            if type(polygon) is list and len(polygon) % 2:
                what += f": polygon {number} has {len(polygon)} coordinates, which is odd"
    scanner.refuse(entry, what, remedy)


def _is_int32(value: Any) -> bool:
    return type(value) is int and -(2**31) <= value < 2**31


def _are_numbers(value: Any) -> bool:
    return type(value) is list and _NUMBERS.issuperset(map(type, value))


def _is_segmentation(value: Any) -> bool:
    """Return whether a value is polygons or not a list, which DALI reads like an empty list."""
    # DALI joins the coordinates of all polygons, and an odd one shifts all later ones.
    return type(value) is not list or all(
        _are_numbers(each) and len(each) % 2 == 0 for each in value
    )


def _is_mask(value: Any) -> bool:
    """Return whether a value is an RLE, polygons, or neither list nor object, which is no mask."""
    if type(value) is not dict:
        return _is_segmentation(value)
    size, counts = value.get("size") or 0, value.get("counts") or 0
    if type(size) is not list or len(size) != 2 or not all(_is_int32(it) and it > 0 for it in size):
        return False
    if type(counts) is str:
        return _RLE(counts) is not None
    return type(counts) is list and all(type(it) is int and 0 <= it < 2**32 for it in counts)


_INTEGER = "an integer of 32 bits"
_CATEGORY: list[_Rule] = [
    ("id", lambda it: _is_int32(it) and it != -1, f"{_INTEGER} other than -1"),
]
_ANNOTATION: list[_Rule] = [
    ("image_id", _is_int32, _INTEGER),
    ("category_id", _is_int32, _INTEGER),
    (
        "bbox",
        lambda it: _are_numbers(it) and len(it) == 4,
        "a list of 4 numbers: x, y, width, height",
    ),
    ("iscrowd", lambda it: it is _MISSING or _is_int32(it), "0 or 1, an integer"),
]


def _mask_rules(options: CocoOptions) -> list[_Rule]:
    wish = "a list of lists of coordinates (x, y, x, y ...)"
    if options.pixelwise_masks:
        wish += ", [], or an object of size and counts (an RLE)"
        return [("segmentation", _is_mask, wish)]
    return [("segmentation", _is_segmentation, wish)] if options.polygon_masks else []


def _image_rules(options: CocoOptions) -> list[_Rule]:
    needed = options.ratio or options.pixelwise_masks
    wish = f"{_INTEGER}, at least 1, for ratio and pixelwise_masks" if needed else _INTEGER

    def is_size(value: Any) -> bool:
        return _is_int32(value) and value > 0 if needed else value is _MISSING or _is_int32(value)

    return [
        ("id", _is_int32, _INTEGER),
        ("file_name", lambda it: type(it) is str and _NAME(it), "a name without newline and NUL"),
        ("width", is_size, wish),
        ("height", is_size, wish),
    ]


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
