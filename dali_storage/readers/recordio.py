"""`readers.mxnet`: samples that are records of RecordIO files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from nvidia.dali.pipeline import do_not_convert

from .. import discovery
from .._types import PathLike
from ..catalog import Catalog, Tree
from ..dali import DataNode
from ..formats import recordio
from ..options import dali_flag
from .arguments import add, prepare
from .containers import goes_by_container, on_cpu


@do_not_convert  # type: ignore[untyped-decorator]  # AutoGraph has nothing to rewrite
def mxnet(
    *,
    path: PathLike | Sequence[PathLike],
    index_path: PathLike | Sequence[PathLike],
    device: str | None = None,
    name: str | None = None,
    bytes_per_sample_hint: int | Sequence[int] = 0,
    dont_use_mmap: bool = False,
    initial_fill: int = 1024,
    lazy_init: bool = False,
    num_shards: int = 1,
    pad_last_batch: bool = False,
    prefetch_queue_depth: int = 1,
    preserve: bool = False,
    random_shuffle: bool = False,
    read_ahead: bool = False,
    seed: int | None = None,
    shard_id: int = 0,
    shuffle_after_epoch: bool = False,
    shuffle_after_epoch_seed: int | None = None,
    skip_cached_images: bool = False,
    stick_to_shard: bool = False,
    tensor_init_bytes: int = 1 << 20,
    shuffle: Literal["dali", "samples"] = "dali",
    backend: str = "python-file",
    backend_options: Mapping[str, Any] | None = None,
    return_index: bool = False,
    pinned: bool | None = None,
) -> tuple[DataNode, ...]:
    """`fn.readers.mxnet` of DALI 2.4, with a choice of how the bytes are read.

    The arguments are the same, and so are the samples, labels, order, shards and epochs, bit for
    bit. Those that `readers.file` has, too, are described there.

    Args:
        path: the .rec files. They count as one long file: a record may begin in one of them and end
            in the next.
        index_path: one file of pairs "key offset", for all `path` together, as im2rec writes it.
        device: "cpu" or None.
        shuffle: "dali": random_shuffle draws from a window that moves over the files in their
            order; shuffle_after_epoch shuffles the order of the files, and may be combined with it.
            "samples": both are those of `readers.file`, which shuffle the whole list of samples.

    Returns:
        `(images, labels)` or `(images, labels, index)`.

        * images: the encoded images; uint8, 1-D. Host memory that DALI shares and does not copy,
          unless an image was cut when it was written, because RecordIO's magic number is in it.
        * labels: float32, shape (1,), or (n,) where a record has n of them.
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError, BackendUnavailable, RuntimeError: as `readers.file`; or the index has
            anything but pairs of numbers, or an offset beyond the files.
        OSError: a file cannot be accessed.

    The pipeline raises, while it runs, what that of `readers.file` raises, and:

        * ContainerChangedError: a file changed after it was opened, or is shorter than it was.
        * RecordError: what the index points at is no record of an image. `filename` is the file.
    """
    arguments = dict(locals())
    on_cpu(device, "records are parsed on the CPU")
    for flag in ("dont_use_mmap", "read_ahead"):
        dali_flag(flag, arguments[flag])
    by_container = goes_by_container(shuffle)
    paths = discovery.file_names("path", path)
    indices = discovery.file_names("index_path", index_path)
    if len(indices) != 1:
        raise ValueError(f"index_path must be one file for all of path, not {len(indices)}")

    def find(tree: Callable[[], Tree | None]) -> Catalog:
        return recordio.find(paths, indices[0], by_container=by_container)

    prepared = prepare(arguments, find, by_container=by_container)
    return add(arguments, prepared, recordio.RecordIO())
