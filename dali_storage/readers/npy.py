"""`readers.numpy`: .npy files as samples."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, TypeAlias, Unpack

from ..contract._types import PathLike
from ..contract.options import dali_integer, dali_number
from ..formats.npy import header
from ..formats.npy.region import Region
from ..samples.finding import locations
from ..samples.locations import file_names
from ..samples.patterns import as_list
from .arguments import DaliArguments, DataNode, Prepared, makes_reader, pick, prepare
from .containers import on_cpu, one_or_all
from .plugs import Common

Integers: TypeAlias = int | Sequence[int] | None
Fractions: TypeAlias = float | Sequence[float] | None

_PAD = "pad", "constant", "const", "fill"  # DALI's synonyms, in upper or lower case


class NumpyArguments(DaliArguments, total=False):
    """The arguments of `numpy`."""

    cache_header_information: bool | None
    file_filter: PathLike
    file_list: PathLike | None
    file_root: PathLike | None
    files: PathLike | Sequence[PathLike] | None
    fill_value: float | None
    out_of_bounds_policy: str | None
    register_buffers: bool | None
    rel_roi_end: Fractions
    rel_roi_shape: Fractions
    rel_roi_start: Fractions
    roi_axes: Integers
    roi_end: Integers
    roi_shape: Integers
    roi_start: Integers
    use_o_direct: bool | None


@dataclass(frozen=True, kw_only=True)
class _Arrays:
    """The same as a value, without `use_o_direct`, which is in `Common`."""

    cache_header_information: bool | None = False
    file_filter: PathLike = "*.npy"
    file_list: PathLike | None = None
    file_root: PathLike | None = None
    files: PathLike | Sequence[PathLike] | None = None
    fill_value: float | None = 0.0
    out_of_bounds_policy: str | None = "error"
    register_buffers: bool | None = True
    rel_roi_end: Fractions = None
    rel_roi_shape: Fractions = None
    rel_roi_start: Fractions = None
    roi_axes: Integers = ()
    roi_end: Integers = None
    roi_shape: Integers = None
    roi_start: Integers = None


@makes_reader(_Arrays, samples=["file_root", "files", "file_list", "file_filter"])
def numpy(**given: Unpack[NumpyArguments]) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.numpy` with a choice of storage backend.

    The arguments are the same, and so are the arrays, their order, shards and epochs, bit for bit.
    For all other arguments see `readers.file`.

    Args:
        device: "cpu" or None. For a GPU use `pinned`, and `.gpu()` on the output.
        cache_header_information, register_buffers: ignored. A header shared by many files is parsed
            once in any case, and the header of each file is compared.
        file_filter: a glob pattern for the names of files; upper and lower case differ.
        file_list: a text file with the name of a file on each line, white space included, relative
            to `file_root`, by default to the directory of this file.
        file_root: a directory. The files directly inside come first, then the files of each
            subdirectory, sorted as bytes.
        files: names of files, relative to `file_root`, by default to the current directory.
        roi_start, rel_roi_start: the start of the region to read, by default 0: a number for each
            axis, or one for all. With rel_, as fractions of the array's extent. Tensors are
            refused: slice the output with `fn.slice`.
        roi_end, rel_roi_end, roi_shape, rel_roi_shape: the end or the size of the region.
        roi_axes: the axes of these numbers, by default all. Other axes are read whole.
        out_of_bounds_policy: for regions beyond an array. "error": a RecordError. "pad": fill with
            `fill_value`. "trim_to_shape": end the region with the array.
        fill_value: rounded to the type of the array, and kept within its limits.
        use_o_direct: the same as `backend_options={"direct": True}`.

    Returns:
        The arrays; with return_index `(arrays, index)`.

        * arrays: type and shape of the files, in C order. Host memory shared with DALI. Arrays in
          Fortran order, non-contiguous regions, unaligned data, and arrays of up to 4 KiB are
          copied.
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.file`.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: a file is truncated, or not a .npy file; DALI has no such type (objects are
          never unpickled); the region does not fit; or the type or the number of dimensions differs
          from the first batch, which DALI does not permit for Python sources. `filename` is the
          path of the file.
    """
    common, own = pick(Common, given), pick(_Arrays, given)
    on_cpu(common.device, "headers are parsed on the CPU")
    file_root, file_list, file_filter = own.file_root, own.file_list, own.file_filter
    files = None if own.files is None else file_names("files", own.files)
    return prepare(
        common,
        lambda tree, remote: header.find(file_root, file_list, files, file_filter, remote),
        header.Npy(_region(own)),
        names=locations(file_root, files, file_list),
    ).returning(one_or_all)


def _region(own: _Arrays) -> Region | None:
    """The region of interest, or None; the arguments are checked in any case."""
    starts = {"roi_start": own.roi_start, "rel_roi_start": own.rel_roi_start}
    ends = {
        "roi_end": own.roi_end,
        "rel_roi_end": own.rel_roi_end,
        "roi_shape": own.roi_shape,
        "rel_roi_shape": own.rel_roi_shape,
    }
    for each in (starts, ends):
        given = [name for name, value in each.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot both be given")
    numbers = {name: _numbers(name, value) for name, value in (starts | ends).items()}
    axes = _numbers("roi_axes", own.roi_axes)
    policy = "error" if own.out_of_bounds_policy is None else str(own.out_of_bounds_policy)
    policy = "pad" if policy.lower() in _PAD else policy
    if policy not in ("error", "pad", "trim_to_shape"):
        known = "'error', 'pad' or 'trim_to_shape'"
        raise ValueError(f"out_of_bounds_policy must be {known}, not {own.out_of_bounds_policy!r}")
    fill = dali_number("fill_value", 0.0 if own.fill_value is None else own.fill_value)
    # As in DALI, an empty list counts as not given.
    numbers = {name: values for name, values in numbers.items() if values}
    return Region(numbers, axes, policy, fill) if numbers else None


def _numbers(name: str, value: Any) -> list[Any]:
    dali: Any = sys.modules.get("nvidia.dali.data_node")
    if dali and isinstance(value, dali.DataNode):
        what = "the region is cut when the files are read, before DALI has any tensor"
        raise TypeError(f"{name} must be numbers: {what}; use fn.slice on the output instead")
    given = [] if value is None else as_list(name, value, (str, bytes, Number))
    if name.startswith("rel_"):
        return [dali_number(name, each) for each in given]
    return [dali_integer(name, each, bits=32) for each in given]
