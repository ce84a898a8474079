""".npy files: an array each, with a header that says its type and shape.

The layout is that of numpy.lib.format, versions 1 to 3. DALI's reader (dali/util/numpy.cc) takes
files of version 1 only.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .._types import IntArray
from ..catalog import Catalog
from ..contents import SMALL, Contents, Format, Output
from ..errors import RecordError

_LONGEST = 1 << 16  # bytes of a header; that of an array of numbers has 128
_WIDTHS = {npy.magic(1, 0): 2, npy.magic(2, 0): 4, npy.magic(3, 0): 4}  # bytes of its length
_TYPES = "bool, (u)int8 to 64, float16, 32 or 64"

Cut = Callable[[NDArray[Any]], NDArray[Any]]
"""Takes the part of an array that is wanted; raises ValueError if it has none."""


class Npy(Format):
    """An array for each file: a view of the batch's buffer if it lies there as DALI needs it.

    Otherwise (Fortran order, a part that is not contiguous, an odd offset) it is a copy. Arrays of
    a batch that are small and of one shape are copied into one.
    """

    operator = "numpy"
    schema = "Numpy"
    outputs = (Output(None, None),)
    labels = False

    def __init__(self, cut: Cut | None = None) -> None:
        """`cut` is applied to each array."""
        self._cut = cut
        self._first: tuple[np.dtype[Any], int, bytes] | None = None

    def decode(
        self, catalog: Catalog, delivered: IntArray, contents: Contents
    ) -> Sequence[Contents]:
        """The arrays; raises RecordError for a file that is none, or of another type."""
        arrays = []
        samples = delivered.tolist()
        for sample, content in zip(samples, contents, strict=True):
            try:
                array = view(memoryview(content))
                arrays.append(array if self._cut is None else self._cut(array))
            except ValueError as error:
                raise RecordError(catalog.path(sample), str(error)) from None
        self._require_one_kind(catalog, samples, arrays)
        return (_packed(arrays),)

    def _require_one_kind(
        self, catalog: Catalog, samples: list[int], arrays: list[NDArray[Any]]
    ) -> None:
        """DALI takes only arrays of one type and number of dimensions from a Python source."""
        if self._first is None:
            self._first = arrays[0].dtype, arrays[0].ndim, catalog.path(samples[0])
        dtype, ndim, path = self._first
        for sample, array in zip(samples, arrays, strict=True):
            if array.dtype != dtype or array.ndim != ndim:
                raise RecordError(
                    catalog.path(sample),
                    f"the array is {_kind(array.dtype, array.ndim)}, and that of "
                    f"{os.fsdecode(path)!r} is {_kind(dtype, ndim)}; all must have one type and "
                    "number of dimensions: read the others by a reader of their own",
                )


class Header(NamedTuple):
    """What the header of a .npy file says.

    Attributes:
        dtype: one that DALI has.
        shape: of the array; all at least 0.
        nbytes: of the array.
        order: "C" or "F", which of its axes varies fastest: the last or the first.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    order: Any


def view(content: memoryview) -> NDArray[Any]:
    """The array in the bytes of a file, without a copy. More bytes may follow it.

    Raises:
        ValueError: the file is no array of numbers, or is cut short; says what to do.
    """
    start = bytes(content[:12])
    width = _WIDTHS.get(start[:8])
    if width is None:
        raise ValueError(f"it is no .npy file of version 1 to 3: it begins with {start!r}")
    offset = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    if offset > min(len(content), _LONGEST):
        what = f"its header has {offset:,} bytes, and the file {len(content):,}"
        raise ValueError(f"{what}; it is cut short or damaged: write it anew by numpy.save()")
    header = parse(bytes(content[:offset]))
    needed = offset + header.nbytes
    if needed > len(content):
        what = f"an array {_kind(header.dtype, len(header.shape))} of the shape {header.shape}"
        what = f"{what} needs {needed:,} bytes, and the file has {len(content):,}"
        raise ValueError(f"{what}; it is cut short: write it anew by numpy.save()")
    # Not np.ndarray(buffer=...): it would refer to the buffer below the lease, not to the lease.
    array = np.frombuffer(content[offset:needed], header.dtype)
    return array.reshape(header.shape, order=header.order)


@lru_cache(maxsize=1024)  # a data set usually has one shape, or a few
def parse(raw: bytes) -> Header:
    """A header with all its bytes, from the first of the file to the last before the data.

    Raises:
        ValueError: it is not valid, or DALI has no such type.
    """
    file = io.BytesIO(raw)
    try:
        # 3.0 differs from 2.0 only in the encoding of the names of fields.
        read = npy.read_array_header_1_0
        if npy.read_magic(file) != (1, 0):
            read = npy.read_array_header_2_0
        shape, fortran, dtype = read(file, max_header_size=_LONGEST)
    except Exception as error:  # numpy does not promise which
        what = f"its header is not valid ({str(error)[:200]})"
        raise ValueError(f"{what}; write it anew by numpy.save()") from None
    _require_known(dtype)
    if min(shape, default=0) < 0 or math.prod(filter(None, shape)) * dtype.itemsize >= 1 << 63:
        raise ValueError(f"its shape {shape} is impossible; write it anew by numpy.save()")
    nbytes = math.prod(shape) * dtype.itemsize
    return Header(dtype, shape, nbytes, "F" if fortran else "C")


def _require_known(dtype: np.dtype[Any]) -> None:
    what, remedy = "", f"save it as one of {_TYPES}"
    if dtype.hasobject:
        what = "Python objects (never unpickled)"
    elif dtype.fields is not None or dtype.subdtype is not None:
        what = f"records ({dtype})"
    elif dtype.kind not in "biuf" or dtype.itemsize > 8:
        what = str(dtype)
    elif not dtype.isnative:
        what, remedy = f"big-endian ({dtype.str})", "save array.astype(array.dtype.newbyteorder())"
    if what:
        raise ValueError(f"its elements are {what}, and DALI has no type for them; {remedy}")


def _kind(dtype: np.dtype[Any], ndim: int) -> str:
    return f"of {dtype} and {ndim} dimension{'s' * (ndim != 1)}"


def _packed(arrays: list[NDArray[Any]]) -> Contents:
    """The arrays as DALI needs them, in C order."""
    first = arrays[0]
    if first.nbytes <= SMALL and len({array.shape for array in arrays}) == 1:
        return np.stack(arrays, out=np.empty((len(arrays), *first.shape), first.dtype))
    return [it if it.flags.carray else np.array(it, order="C") for it in arrays]
