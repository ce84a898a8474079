""".npy files: an array each, with its type and shape in a header.

The layout is that of numpy.lib.format, versions 1 to 3. DALI's reader (dali/util/numpy.cc) accepts
files of version 1 only, whatever follows the shape in their headers, and finds files by the rules
of its loader/file_loader.h.
"""

from __future__ import annotations

import io
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog, CatalogBuilder
from ...contract.errors import RecordError
from ...contract.format import Format, Output
from ...contract.objects import scheme
from ...contract.remote import Remote
from ...contract.views import SMALL, Contents, Views
from ...samples import discovery, listed
from ...samples.locations import file_names, local_path, location
from ...samples.patterns import compile_filters
from ..kinds import OneKind, named
from .region import Region

_WIDTHS = {npy.magic(1, 0)[:-1]: 2, npy.magic(2, 0)[:-1]: 4, npy.magic(3, 0)[:-1]: 4}
"""The bytes of a header's length, by major version: DALI reads any minor one."""
# A header as DALI reads it; the rest is ignored, with padding and more keys.
_PLAIN = re.compile(
    rb"\s*\{\s*'descr'\s*:\s*'([<|=](?:[ui][1248]|f[248]|b1))'\s*,"
    rb"\s*'fortran_order'\s*:\s*(True|False)\s*,"
    rb"\s*'shape'\s*:\s*\(\s*((?:(?:\d+\s*,\s*)+(?:\d+\s*)?)?)\)"
).match
_LONG = re.compile(rb"(\d)L(?=\s*[,)])")  # an integer of Python 2
_LONGEST = 8 + 2 + 0xFFFF  # bytes of a header of version 1; an array of numbers has 128
_Header: TypeAlias = tuple[Iterable[Any], bool, np.dtype[Any]]
"""Shape, whether in Fortran order, and type."""
_MOST_AXES = 32
_NO_LABELS = np.empty(0, np.int32)


def find(
    file_root: Any, file_list: Any, files: Any, file_filter: Any, remote: Remote | None = None
) -> Catalog:
    """Find the files of these arguments, as whole samples without labels; None means not given.

    `remote` lists objects.

    Raises:
        ValueError: none of the three is given, or both `files` and `file_list`; or there are no
            files.
        OSError, TypeError: as the functions of `discovery`.
    """
    file_filter = "*.npy" if file_filter is None else file_filter
    choose = compile_filters("file_filter", [file_filter], case_sensitive=True)
    if files is not None and file_list is not None:
        raise ValueError("files and file_list cannot both be given")
    root = b"" if file_root is None else location("file_root", file_root)
    if file_list is not None:
        path = local_path("file_list", file_list)
        with open(os.fsdecode(path), "rb") as file:  # a NUL ends a C string
            lines = [line.partition(b"\0")[0] for line in file.read().split(b"\n")]
        files = file_names(f"file_list {os.fsdecode(path)!r}", [*filter(None, lines)])
        if file_root is None and not scheme(files[0]):
            file_root = path.rpartition(b"/")[0]
    if files is not None:
        return replace(discovery.from_files(files, file_root=file_root), labels=_NO_LABELS)
    if file_root is None:
        raise ValueError("one of file_root, files and file_list must be given")
    if scheme(root):
        found = listed.from_store(
            remote, file_root, file_filters=[file_filter], case_sensitive_filter=True
        )
        return replace(found, labels=_NO_LABELS)
    tree, builder = discovery.Directory(file_root), CatalogBuilder()
    for folder in [b".", *sorted(tree.directories())]:  # "." also comes before "!"
        builder.extend(sorted(choose(tree.files(folder))), (), prefix=folder + b"/")
    found = builder.build(root)
    if not found.file_count:
        what = f"none in file_root={file_root!r} or its directories matches {file_filter!r}"
        raise ValueError(f"no files found: {what}")
    return found


class Npy(Format):
    """An array for each file: a view of the batch's buffer, if DALI can use the layout.

    Otherwise (Fortran order, a region that is not contiguous, an odd offset) a copy. Small arrays
    of one shape in a batch are copied into one.
    """

    operator = "numpy"
    schema = "Numpy"
    outputs: Sequence[Output] = (Output(None, None),)
    labels = False

    def __init__(self, region: Region | None = None) -> None:
        """`region` is cut out of each array; None: the whole array."""
        self._region = region
        self._kind = OneKind("the array")

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the arrays; raise RecordError for another file, or an array of another type."""
        return (self._arrays(catalog, delivered, views, self._kind),)

    def _arrays(self, catalog: Catalog, chosen: IntArray, views: Views, kind: OneKind) -> Contents:
        arrays = []
        samples = chosen.tolist()
        for sample, content in zip(samples, views.slices(), strict=True):
            try:
                arrays.append(self._array(catalog, sample, content))
            except ValueError as error:
                where = f"{catalog.where(sample)}: " if catalog.ranges is not None else ""
                raise RecordError(catalog.path(sample), f"{where}{error}") from None
        kind.require(catalog, samples, [(array.dtype, array.ndim) for array in arrays])
        first = arrays[0]
        if first.nbytes <= SMALL and len({array.shape for array in arrays}) == 1:
            return np.stack(arrays, out=np.empty((len(arrays), *first.shape), first.dtype))
        return [it if it.flags.carray else np.array(it, order="C") for it in arrays]

    def _array(self, catalog: Catalog, sample: int, content: memoryview) -> NDArray[Any]:
        array = view(content)
        return array if self._region is None else self._region.cut(array)


def view(content: memoryview) -> NDArray[Any]:
    """Return the array in the bytes of a file, without a copy. More bytes may follow the array.

    Raises:
        ValueError: the file is not an array of numbers, or is truncated; has the remedy.
    """
    start = bytes(content[:12])
    width = _WIDTHS.get(start[:7])
    if width is None:
        raise ValueError(f"it is not a .npy file of version 1 to 3: it begins with {start!r}")
    offset = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    if offset > min(len(content), _LONGEST):
        what = f"its header has {offset:,} bytes, and the file {len(content):,}"
        raise ValueError(f"{what}; the file is damaged: write it again with numpy.save()")
    dtype, shape, nbytes, order = parse(bytes(content[:offset]))
    needed = offset + nbytes
    if needed > len(content):
        what = f"an array {named(dtype, len(shape))} of the shape {shape}"
        what = f"{what} needs {needed:,} bytes, but the file has {len(content):,}"
        raise ValueError(f"{what}; the file is truncated: write it again with numpy.save()")
    # Not np.ndarray(buffer=...), which would refer to the buffer below the lease, not to the lease.
    array = np.frombuffer(content[offset:needed], dtype)
    return array.reshape(shape, order=order)


@lru_cache(maxsize=1024)  # a data set usually has one shape, or a few
def parse(raw: bytes) -> tuple[np.dtype[Any], tuple[int, ...], int, Literal["C", "F"]]:
    """Parse a header: the type and shape of an array, its bytes, and its order, C or Fortran.

    `raw` is the header, from the first byte of the file to the last before the data.

    Raises:
        ValueError: the header is not valid, or DALI has no such type.
    """
    try:
        shape, fortran, dtype = _parse_as_dali(raw) or _parse_as_numpy(raw)
    except Exception as error:  # numpy does not document the types
        what = f"its header is not valid ({str(error)[:200]})"
        raise ValueError(f"{what}; write the file again with numpy.save()") from None
    shape = tuple(map(int, shape))  # True is an int
    if dtype.hasobject or dtype.kind not in "biuf" or dtype.itemsize > 8 or not dtype.isnative:
        what = "Python objects, which are never unpickled" if dtype.hasobject else str(dtype)[:200]
        known = "bool, (u)int8 to 64, float16, 32 or 64, little-endian"
        raise ValueError(f"its elements are {what}; save them as a type of DALI: {known}")
    whole = math.prod(filter(None, shape)) * dtype.itemsize
    if min(shape, default=0) < 0 or whole >= 1 << 63 or len(shape) > _MOST_AXES:
        what = f"its shape {shape} is impossible, or has more than {_MOST_AXES} dimensions"
        raise ValueError(f"{what}; write the file again with numpy.save()")
    return dtype, shape, whole if all(shape) else 0, "F" if fortran else "C"


def _parse_as_dali(raw: bytes) -> _Header | None:
    if (found := _PLAIN(raw, 8 + _WIDTHS[raw[:7]])) is None:
        return None
    shape = filter(bytes.strip, found[3].split(b","))
    return shape, found[2] == b"True", np.dtype(found[1].decode())


def _parse_as_numpy(raw: bytes) -> _Header:
    # numpy would warn of integers of Python 2, which may be an error.
    file = io.BytesIO(_LONG.sub(rb"\1 ", raw))
    # 3.0 differs from 2.0 only in the encoding of the names of fields.
    is_first = npy.read_magic(file)[0] == 1
    read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
    return read(file, max_header_size=_LONGEST)
