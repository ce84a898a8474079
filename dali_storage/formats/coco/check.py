"""The values that an entry of a JSON file of annotations may have.

DALI's parser stops silently at a value of an unexpected type, and loses the rest of the file. Some
values crash the parser, or make an endless loop. The rules follow DALI 2.4, loader/coco_loader.cc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from .options import CocoOptions
from .scan import Entry, Scanner

Rule: TypeAlias = tuple[str, Callable[[Any], Any], str]
"""A field, a check of its value, and a description of valid values."""

_MISSING = type("_Missing", (), {"__repr__": lambda _: "missing"})()
_NAME = re.compile(r"[^\n\0]+").fullmatch
# A compressed RLE: numbers of up to 7 characters, the last of which is below "P".
_RLE = re.compile(r"(?:[P-o]{0,6}[0-O])+").fullmatch
_NUMBERS = frozenset({int, float})


def rules(options: CocoOptions) -> dict[str, list[Rule]]:
    """Return the rules for the entries of each list."""
    return {
        "images": _image_rules(options),
        "categories": _CATEGORY,
        "annotations": _ANNOTATION + _mask_rules(options),
    }


def check(scanner: Scanner, entry: Entry, rules: Sequence[Rule]) -> None:
    """Check the type of an entry, and its fields.

    Raises:
        ValueError: a field is missing, or has a value that DALI refuses or misreads; names the
            file, the entry, its id, the field and the value.
    """
    value = entry.value
    if type(value) is not dict:
        scanner.refuse(entry, f"it must be an object, not {_shown(scanner.real(entry))}")
    for field, is_right, wish in rules:
        if not is_right(value.get(field, _MISSING)):
            _refuse(scanner, entry, field, wish)


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
_CATEGORY: list[Rule] = [
    ("id", lambda it: _is_int32(it) and it != -1, f"{_INTEGER} other than -1"),
]
_ANNOTATION: list[Rule] = [
    ("image_id", _is_int32, _INTEGER),
    ("category_id", _is_int32, _INTEGER),
    (
        "bbox",
        lambda it: _are_numbers(it) and len(it) == 4,
        "a list of 4 numbers: x, y, width, height",
    ),
    ("iscrowd", lambda it: it is _MISSING or _is_int32(it), "0 or 1, an integer"),
]


def _mask_rules(options: CocoOptions) -> list[Rule]:
    wish = "a list of lists of coordinates (x, y, x, y ...)"
    if options.pixelwise_masks:
        wish += ", [], or an object of size and counts (an RLE)"
        return [("segmentation", _is_mask, wish)]
    return [("segmentation", _is_segmentation, wish)] if options.polygon_masks else []


def _image_rules(options: CocoOptions) -> list[Rule]:
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
