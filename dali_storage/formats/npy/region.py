"""Regions of interest, cut as in DALI.

The arithmetic follows dali/operators/generic/slice/slice_attr.h and out_of_bounds_policy.h:
relative numbers and their products are float32, and halves are rounded away from zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

_LIMIT = 1 << 62  # of positions

_Slices: TypeAlias = tuple[slice, ...]
_Plan: TypeAlias = tuple[_Slices, list[int] | None, _Slices]
"""The part of an array in a region; with padding, also the region's shape and the part's place."""


class Region:
    """A part of arrays, given by numbers for their axes."""

    def __init__(
        self,
        numbers: Mapping[str, Sequence[float]],
        axes: Sequence[int] = (),
        policy: str = "error",
        fill_value: float = 0.0,
    ) -> None:
        """The arguments of `fn.readers.numpy`.

        Args:
            numbers: roi_start, rel_roi_end and so on: a number for each of the axes, or one for
                all. At most one gives the start of the region, and one the end.
            axes: the axes of the numbers; if empty, all axes in order.
            policy: for a region beyond an array: "error", "pad" or "trim_to_shape".
            fill_value: the padding of "pad", converted to the type of the array.
        """
        self._numbers = numbers
        self._axes = axes
        self._policy = policy
        self._fill_value = fill_value
        self._plan = lru_cache(maxsize=1024)(self._make_plan)  # a data set usually has few shapes

    def cut(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the region of an array: a view, or new memory with padding.

        Raises:
            ValueError: the region does not fit; names the argument to change.
        """
        inside, shape, place = self._plan(array.shape)
        if shape is None:
            return array[inside]
        fill = saturated(self._fill_value, array.dtype)
        try:
            padded = np.full(shape, fill, array.dtype)
        except (MemoryError, ValueError):
            what = f"the region of shape {tuple(shape)} does not fit into memory"
            raise ValueError(f"{what}; correct the roi arguments") from None
        padded[place] = array[inside]
        return padded

    def _make_plan(self, shape: tuple[int, ...]) -> _Plan:
        bounds = [(0, extent) for extent in shape]
        axes = self._axes_of(len(shape))
        for name, it in self._numbers.items():
            if len(it) not in (1, len(axes)):
                what = f"a number for each of {len(axes)} axes, or one for all"
                raise ValueError(f"{name} must have {what}")
        for number, axis in enumerate(axes):
            given = {name: it[number % len(it)] for name, it in self._numbers.items()}
            bounds[axis] = _bounds(given, axis, shape[axis])
        inner = [
            (min(max(start, 0), extent), min(max(end, 0), extent))
            for (start, end), extent in zip(bounds, shape, strict=True)
        ]
        inside = tuple(slice(*it) for it in inner)
        if inner == bounds or self._policy == "trim_to_shape":
            return inside, None, ()
        if self._policy == "error":
            raise ValueError(
                f"the region {bounds} is not within the array of the shape {shape}; correct the "
                "roi arguments, or give out_of_bounds_policy='pad' or 'trim_to_shape'"
            )
        pairs = zip(inner, bounds, strict=True)
        place = tuple(slice(first - start, last - start) for (first, last), (start, _) in pairs)
        return inside, [end - start for start, end in bounds], place

    def _axes_of(self, ndim: int) -> list[int]:
        axes = list(self._axes or range(ndim))
        if any(not -ndim <= axis < ndim for axis in axes):
            raise ValueError(f"roi_axes must be axes of the array, which has {ndim}, not {axes}")
        if len({axis % ndim for axis in axes}) < len(axes):
            raise ValueError(f"roi_axes must be different axes of {ndim}, not {axes}")
        return [axis % ndim for axis in axes]


def _bounds(given: Mapping[str, float], axis: int, extent: int) -> tuple[int, int]:
    """Return the start and end of a region in an axis, from the numbers for this axis."""
    with np.errstate(over="ignore", invalid="ignore"):
        single = {name: np.float32(it) for name, it in given.items() if name.startswith("rel_")}
        scaled = {name: float(it * np.float32(extent)) for name, it in single.items()}
    start = scaled.get("rel_roi_start", given.get("roi_start", 0))
    end = scaled.get("rel_roi_end", given.get("roi_end", extent))
    if {"rel_roi_start", "rel_roi_shape"} <= single.keys():
        # One product, so adjacent regions fit together.
        end = (float(single["rel_roi_start"]) + float(single["rel_roi_shape"])) * extent
    elif {"roi_shape", "rel_roi_shape"} & given.keys():
        end = start + scaled.get("rel_roi_shape", given.get("roi_shape", 0))
    if not -_LIMIT <= start <= end < _LIMIT:  # nor is NaN
        what = f"the region would be from {start:g} to {end:g} in axis {axis}, which has {extent}"
        raise ValueError(f"{what}; correct the roi arguments")
    return _rounded(start), _rounded(end)


def saturated(value: float, dtype: np.dtype[Any]) -> Any:
    """Convert a number like DALI's ConvertSat(): rounded, and within the limits of the type."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
        if dtype.kind == "f":
            return single.astype(dtype)
    if np.isnan(single):
        raise ValueError(f"fill_value must be a number for an array of {dtype}, not NaN")
    whole = _rounded(min(max(float(single), -(2.0**64)), 2.0**64))
    if dtype.kind == "b":
        return bool(whole)
    limits = np.iinfo(dtype)
    return min(max(whole, int(limits.min)), int(limits.max))


def _rounded(value: float) -> int:
    """Round like llround(): to the nearest integer, halves away from zero."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))
