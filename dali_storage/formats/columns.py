"""Columns of integers from users: sequences, arrays, or .npy files."""

import os
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray, PathLike
from ..samples.discovery import integers
from ..samples.locations import local_path
from ..samples.patterns import PATH_TYPES

Column: TypeAlias = PathLike | Any
"""The path of a .npy file of integers, or a sequence or array of them."""


def column(argument: str, given: Column, count: int | None = None) -> IntArray:
    """Return the integers of an argument, int64[n], none negative; owned by the caller.

    With `count`, n must equal `count`.

    Raises:
        ValueError, TypeError: another value or count; names the argument and the first wrong value.
        OSError: the file cannot be read.
    """
    about, values = _load(argument, given)
    if values.ndim != 1:
        raise TypeError(f"{about} must be a sequence of integers, not {_shown(given, values)}")
    if values.size and values.dtype.kind not in "iu":
        raise TypeError(f"{about} must be integers below 2**63, not {values.dtype}")
    for wrong in np.flatnonzero((values < 0) | (values > 2**63 - 1))[:1].tolist():
        what = f"from 0 to 2**63 - 1, not {values[wrong]} (sample {wrong})"
        raise ValueError(f"{about} must be {what}")
    if count not in (None, values.size):
        raise ValueError(f"{argument} must match offsets: {values.size:,} values for {count:,}")
    return values.astype(np.int64, copy=values is given)


def labels_column(given: Column, count: int) -> NDArray[np.int32]:
    """Return `count` labels: their low 32 bits, as in `readers.file`. None is 0, 1, 2 and so on.

    Raises:
        ValueError, TypeError: labels are not numbers, or not as many.
        OSError: the file cannot be read.
    """
    if given is None:
        return np.arange(count, dtype=np.int32)
    if isinstance(given, (np.ndarray, *PATH_TYPES)):
        about, values = _load("labels", given)
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise TypeError(f"{about} must be a sequence of integers, not {_shown(given, values)}")
    else:
        about, values = "labels", np.asarray(integers("labels", given))
    if values.size != count:
        raise ValueError(f"{about} must be one for each sample: {values.size:,} for {count:,}")
    return values.astype(np.int32)


def _load(argument: str, given: Column) -> tuple[str, NDArray[Any]]:
    """Return a name for messages, and the values. Objects in a file are never unpickled."""
    if not isinstance(given, PATH_TYPES):
        try:
            return argument, np.asarray(given)
        except ValueError as error:  # sequences of different lengths
            raise TypeError(f"{argument} must be a sequence of integers: {error}") from None
    path = os.fsdecode(local_path(argument, given))
    about = f"{argument} {path!r}"
    try:
        with open(path, "rb") as file:
            return about, np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, MemoryError) as error:
        what = f"{about} must be a .npy file of integers: {error}"
        raise ValueError(f"{what}; write it with numpy.save()") from None


def _shown(given: Column, values: NDArray[Any]) -> str:
    return repr(given) if values.ndim == 0 else f"{values.dtype} of shape {values.shape}"
