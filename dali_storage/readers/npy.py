"""`readers.numpy`: samples that are .npy files."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Number
from typing import Any, TypeAlias

from nvidia.dali.data_node import DataNode as Tensor
from nvidia.dali.pipeline import do_not_convert

from .._types import PathLike
from ..catalog import Catalog, Tree
from ..dali import DataNode
from ..filters import as_list
from ..formats import npy_files
from ..formats.npy import Npy
from ..formats.roi import Cutter, Region
from ..options import dali_flag, dali_integer
from .arguments import add, prepare
from .containers import on_cpu, storage_options

Integers: TypeAlias = int | Sequence[int] | None
Fractions: TypeAlias = float | Sequence[float] | None

_PAD = "pad", "constant", "const", "fill"  # what DALI takes for it, in any case


@do_not_convert  # type: ignore[untyped-decorator]  # AutoGraph has nothing to rewrite
def numpy(
    *,
    device: str | None = None,
    name: str | None = None,
    bytes_per_sample_hint: int | Sequence[int] = 0,
    cache_header_information: bool = False,
    dont_use_mmap: bool = False,
    file_filter: PathLike = "*.npy",
    file_list: PathLike | None = None,
    file_root: PathLike | None = None,
    files: PathLike | Sequence[PathLike] | None = None,
    fill_value: float = 0.0,
    initial_fill: int = 1024,
    lazy_init: bool = False,
    num_shards: int = 1,
    out_of_bounds_policy: str = "error",
    pad_last_batch: bool = False,
    prefetch_queue_depth: int = 1,
    preserve: bool = False,
    random_shuffle: bool = False,
    read_ahead: bool = False,
    register_buffers: bool = True,
    rel_roi_end: Fractions = None,
    rel_roi_shape: Fractions = None,
    rel_roi_start: Fractions = None,
    roi_axes: Integers = (),
    roi_end: Integers = None,
    roi_shape: Integers = None,
    roi_start: Integers = None,
    seed: int | None = None,
    shard_id: int = 0,
    shuffle_after_epoch: bool = False,
    shuffle_after_epoch_seed: int | None = None,
    skip_cached_images: bool = False,
    stick_to_shard: bool = False,
    tensor_init_bytes: int = 1 << 20,
    use_o_direct: bool = False,
    backend: str = "python-file",
    backend_options: Mapping[str, Any] | None = None,
    return_index: bool = False,
    pinned: bool | None = None,
) -> DataNode | tuple[DataNode, ...]:
    """`fn.readers.numpy` of DALI 2.4, with a choice of how the bytes are read.

    The arguments are the same, and so are the arrays, their order, shards and epochs, bit for bit.
    Those that `readers.file` has, too, are described there.

    Args:
        device: "cpu" or None. For a GPU take `pinned`, and `.gpu()` of the output.
        cache_header_information: ignored. A header is parsed once however many files have it, and
            compared with each file's.
        file_filter: a glob pattern, in which case matters, of the names of files.
        file_list: a text file whose lines are names of files, relative to `file_root`, by default
            to the directory of this file. White space belongs to a name.
        file_root: a directory. The files directly in it are the first samples, then those of each
            directory in it, sorted as bytes.
        files: names of files, relative to `file_root`, by default to the current directory.
        out_of_bounds_policy: what is done if the region of interest reaches beyond an array.
            "error": a RecordError. "pad": it is filled with `fill_value`. "trim_to_shape": it ends
            where the array ends.
        fill_value: converted to float32 and to the type of the array: rounded, and within its
            limits.
        roi_start, roi_end, roi_shape, rel_roi_start, rel_roi_end, rel_roi_shape: the part of the
            array that is wanted: where it begins (0), and where it ends or how long it is. With
            rel_, as fractions of the array's extent. A number for each axis, or one for all.
            Tensors are refused: slice the output with `fn.slice`.
        roi_axes: the axes that these numbers are for; by default all. The others are read whole.
        register_buffers: ignored, as by DALI on the CPU.
        use_o_direct: the option direct=True of the backend. Works without dont_use_mmap, too.

    Returns:
        The arrays; with return_index `(arrays, index)`.

        * arrays: of the files' type and shape, C order. Host memory that DALI shares: where a file
          has its array as DALI needs it, it is not copied. Arrays in Fortran order or at odd
          addresses, regions that are not contiguous, and arrays of 4 KiB or less are copied.
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.file`.

    The pipeline raises, while it runs, what that of `readers.file` raises, and:

        * RecordError: a file is cut short or no .npy file; its type is one that DALI lacks
          (objects are never unpickled); it differs from the others in type or number of dimensions,
          which DALI takes from Python only if they are those of the first batch; the region does
          not fit. `filename` is its path.
    """
    arguments = dict(locals())
    on_cpu(device, "headers are parsed on the CPU")
    for flag in ("cache_header_information", "dont_use_mmap", "read_ahead", "register_buffers"):
        dali_flag(flag, arguments[flag])
    arguments["backend_options"] = storage_options(arguments)
    region = _region(arguments)
    sources = {name: arguments[name] for name in ("file_root", "file_list", "files")}
    pattern = "*.npy" if file_filter is None else file_filter

    def find(tree: Callable[[], Tree | None]) -> Catalog:
        return npy_files.find(**sources, file_filter=pattern)

    fmt = Npy(None if region is None else Cutter(region))
    nodes = add(arguments, prepare(arguments, find), fmt)
    return nodes if len(nodes) > 1 else nodes[0]


def _region(arguments: Mapping[str, Any]) -> Region | None:
    """The region of interest; None if there is none. Checks the arguments in any case."""
    starts = "roi_start", "rel_roi_start"
    ends = "roi_end", "rel_roi_end", "roi_shape", "rel_roi_shape"
    for group in (starts, ends):
        given = [name for name in group if arguments[name] is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} cannot both be given")
    integer = partial(dali_integer, bits=32)
    numbers = {
        name: _numbers(name, arguments[name], _fraction if name.startswith("rel_") else integer)
        for name in (*starts, *ends)
    }
    axes = _numbers("roi_axes", arguments["roi_axes"], integer)
    policy = _policy(arguments["out_of_bounds_policy"])
    fill = _fraction("fill_value", 0.0 if (it := arguments["fill_value"]) is None else it)
    if all(arguments[name] is None for name in numbers):
        return None
    return Region(**numbers, roi_axes=axes, policy=policy, fill_value=fill)


def _numbers(name: str, value: Any, convert: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        what = "the region is cut when the files are read, before DALI has any tensor"
        raise TypeError(f"{name} must be numbers: {what}; give fn.slice the output and the tensor")
    given = [] if value is None else as_list(name, value, (str, bytes, Number))
    return tuple(convert(name, number) for number in given)


def _fraction(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None


def _policy(value: str | None) -> Any:
    if value is None or value in ("error", "trim_to_shape"):
        return value or "error"
    if isinstance(value, str) and value.lower() in _PAD:
        return "pad"
    known = "'error', 'pad' or 'trim_to_shape'"
    raise ValueError(f"out_of_bounds_policy must be {known}, not {value!r}")
