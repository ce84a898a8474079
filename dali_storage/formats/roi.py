"""Regions of interest, as DALI cuts them.

The arithmetic is that of dali/operators/generic/slice/slice_attr.h and out_of_bounds_policy.h:
relative numbers and their products are float32, and halves are rounded away from zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

_NUMBERS = "roi_start", "rel_roi_start", "roi_end", "rel_roi_end", "roi_shape", "rel_roi_shape"
_LIMIT = 1 << 62  # of positions

Slices: TypeAlias = tuple[slice, ...]


class Window(NamedTuple):
    """Where a region is in arrays of one shape.

    Attributes:
        inside: the part of the array that is in the region.
        shape: of the region, if it has to be padded; otherwise None.
        place: where `inside` goes in the region.
    """

    inside: Slices
    shape: tuple[int, ...] | None
    place: Slices


@dataclass(frozen=True, slots=True)
class Region:
    """The arguments of `fn.readers.numpy` that describe a region; () is not given.

    Each of the first six has a number for each of `roi_axes`, or one for all.

    Attributes:
        roi_start, rel_roi_start: where the region begins: indices, or fractions of the extent.
        roi_end, rel_roi_end: where it ends.
        roi_shape, rel_roi_shape: its extent, instead of its end.
        roi_axes: the axes that the numbers are for; () is all of them, in their order.
        policy: what is done if it reaches beyond the array.
        fill_value: what "pad" fills with, converted to the type of the array.
    """

    roi_start: tuple[int, ...] = ()
    rel_roi_start: tuple[float, ...] = ()
    roi_end: tuple[int, ...] = ()
    rel_roi_end: tuple[float, ...] = ()
    roi_shape: tuple[int, ...] = ()
    rel_roi_shape: tuple[float, ...] = ()
    roi_axes: tuple[int, ...] = ()
    policy: Literal["error", "pad", "trim_to_shape"] = "error"
    fill_value: float = 0.0

    def window(self, shape: tuple[int, ...]) -> Window:
        """Where the region is in an array of this shape.

        Raises:
            ValueError: it does not fit; says which argument to change.
        """
        bounds = [(0, extent) for extent in shape]
        axes = self._axes(len(shape))
        columns = {name: self._column(name, len(axes)) for name in _NUMBERS}
        for number, axis in enumerate(axes):
            given = {name: column[number] for name, column in columns.items() if column}
            bounds[axis] = _bounds(given, shape[axis])
        inner = [_within(*it, extent) for it, extent in zip(bounds, shape, strict=True)]
        inside = tuple(slice(*it) for it in inner)
        if inner == bounds or self.policy == "trim_to_shape":
            return Window(inside, None, ())
        if self.policy == "error":
            raise ValueError(
                f"the region {bounds} is not within the array of the shape {shape}; correct the "
                "roi arguments, or give out_of_bounds_policy='pad' or 'trim_to_shape'"
            )
        pairs = zip(inner, bounds, strict=True)
        place = tuple(slice(first - start, last - start) for (first, last), (start, _) in pairs)
        return Window(inside, tuple(end - start for start, end in bounds), place)

    def _axes(self, ndim: int) -> list[int]:
        axes = self.roi_axes or range(ndim)
        if any(not -ndim <= axis < ndim for axis in axes):
            known = f"from {-ndim} to {ndim - 1}, as the array has {ndim} axes"
            raise ValueError(f"roi_axes must be {known}, not {self.roi_axes}")
        found = [axis % ndim for axis in axes]
        if len(set(found)) < len(found):
            raise ValueError(f"roi_axes must be different axes, not {self.roi_axes} of {ndim}")
        return found

    def _column(self, name: str, count: int) -> tuple[Any, ...]:
        values: tuple[Any, ...] = getattr(self, name)
        if len(values) == 1:
            return values * count
        if len(values) not in (0, count):
            raise ValueError(f"{name} must have {count} numbers, or one, not {len(values)}")
        return values


def _bounds(given: dict[str, Any], extent: int) -> tuple[int, int]:
    """Where a region begins and ends in an axis."""
    start, end = _interval(given, extent)
    # False for NaN, too.
    if not -_LIMIT <= start <= end < _LIMIT:
        what = f"the region would be from {start:g} to {end:g} of {extent}"
        raise ValueError(f"{what}; correct the roi arguments")
    return _rounded(start), _rounded(end)


def _interval(given: dict[str, Any], extent: int) -> tuple[float, float]:
    def scaled(name: str) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.float32(given[name]) * np.float32(extent))

    start = scaled("rel_roi_start") if "rel_roi_start" in given else given.get("roi_start", 0)
    if "roi_end" in given:
        return start, given["roi_end"]
    if "rel_roi_end" in given:
        return start, scaled("rel_roi_end")
    if "roi_shape" in given:
        return start, start + given["roi_shape"]
    if "rel_roi_shape" not in given:
        return start, extent
    if "rel_roi_start" in given:  # one product, so that one and the next fit together
        sum_ = float(np.float32(given["rel_roi_start"])) + float(np.float32(given["rel_roi_shape"]))
        return start, sum_ * extent
    return start, start + scaled("rel_roi_shape")


def _within(start: int, end: int, extent: int) -> tuple[int, int]:
    return min(max(start, 0), extent), min(max(end, 0), extent)


class Cutter:
    """Cuts a region out of arrays."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._window = lru_cache(maxsize=1024)(region.window)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """The region of an array: a view, or new memory if it has to be padded.

        Raises:
            ValueError: it does not fit; says which argument to change.
        """
        window = self._window(array.shape)
        inside = array[window.inside]
        if window.shape is None:
            return inside
        fill = saturated(self._region.fill_value, array.dtype)
        padded = np.full(window.shape, fill, array.dtype)
        padded[window.place] = inside
        return padded


def saturated(value: float, dtype: np.dtype[Any]) -> Any:
    """A number as DALI's ConvertSat() converts it: rounded, and within the limits of the type."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
        if dtype.kind == "f":
            return single.astype(dtype)
    if np.isnan(single):
        raise ValueError(f"fill_value must be a number, as the array is of {dtype}, not NaN")
    whole = _rounded(min(max(float(single), -(2.0**64)), 2.0**64))
    if dtype.kind == "b":
        return bool(whole)
    limits = np.iinfo(dtype)
    return min(max(whole, int(limits.min)), int(limits.max))


def _rounded(value: float) -> int:
    """As llround(): to the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
