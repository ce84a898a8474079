"""`readers.mxnet`: samples that are records of RecordIO files."""

from collections.abc import Mapping, Sequence
from typing import Any

from nvidia.dali.pipeline import do_not_convert

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.reader import Reader
from ..dali import DataNode
from ..formats import recordio
from ..formats.files import Files
from ..samples.locations import file_names
from .arguments import KnownStorage, add, prepare
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
    shuffle: str = "dali",
    backend: str | type[Reader] | None = None,
    backend_options: Mapping[str, Any] | None = None,
    return_index: bool = False,
    pinned: bool | None = None,
    resume: Mapping[str, Any] | None = None,
) -> tuple[DataNode, ...]:
    """`fn.readers.mxnet` of DALI 2.4, with a choice of how the bytes are read.

    The arguments are the same, and so are the samples, labels, order, shards and epochs, bit for
    bit. What is not described here is as in `readers.file`.

    Args:
        path: the .rec files. They count as one long file: a record may begin in one of them and end
            in the next.
        index_path: one file for all of `path`, with a pair "key offset" for each record, as im2rec
            writes it.
        device: "cpu" or None.
        shuffle: "dali": `random_shuffle` draws from a window that moves over the files in their
            order, `shuffle_after_epoch` shuffles the order of the files, and both may be given.
            "samples": all samples are shuffled among each other, as in `readers.file`; it takes
            8 bytes of memory a sample, 16 with shuffle_after_epoch.

    Returns:
        `(images, labels)` or `(images, labels, index)`.

        * images: the encoded images; uint8, 1-D. Host memory that DALI shares. Copied are images
          of up to 4 KiB that have one size, and those that are not in one piece: they contain
          RecordIO's magic number, or lie in several files.
        * labels: float32, shape (1,), or (n,) where a record has n of them.
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.file`; and if
            the index has anything but pairs of numbers, or an offset beyond the files.

    While it runs, the pipeline raises what it does with `readers.file`, and:

        * ContainerChangedError: a file has changed or become shorter since it was opened.
        * RecordError: at an offset of the index there is no record of an image, or a damaged one.
          `filename` is the path of the file.
    """
    arguments = dict(locals())
    on_cpu(device, "records are parsed on the CPU")
    paths = file_names("path", path)
    index, *more = file_names("index_path", index_path)
    if more:
        raise ValueError(f"index_path must be one file for all of path, not {1 + len(more)}")
    by_container = goes_by_container(shuffle)

    def find(storage: KnownStorage) -> Catalog:
        return recordio.find(paths, index, by_container=by_container, files=Files(storage.remote))

    prepared = prepare(arguments, find, names=paths, by_container=by_container)
    return add(arguments, prepared, recordio.RecordIO())
