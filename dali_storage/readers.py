"""The drop-in operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from nvidia.dali.pipeline import do_not_convert

from . import dali, discovery, registry
from ._types import PathLike
from .catalog import Catalog
from .dali import DataNode
from .order import OrderOptions, reader_meta
from .reader import Reader
from .source import Source


@do_not_convert  # type: ignore[untyped-decorator]  # AutoGraph has nothing to rewrite
def file(
    *,
    device: str | None = None,
    name: str | None = None,
    bytes_per_sample_hint: int | Sequence[int] = 0,
    case_sensitive_filter: bool = False,
    dir_filters: str | Sequence[str] | None = None,
    dont_use_mmap: bool = False,
    file_filters: str | Sequence[str] = discovery.DEFAULT_FILE_FILTERS,
    file_list: PathLike | None = None,
    file_root: PathLike | None = None,
    files: PathLike | Sequence[PathLike] | None = None,
    initial_fill: int = 1024,
    labels: int | Sequence[int] | None = None,
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
    backend: str = "python-file",
    backend_options: Mapping[str, Any] | None = None,
) -> tuple[DataNode, DataNode]:
    """`fn.readers.file` with a choice of how the bytes come off the storage.

    The same arguments, samples, labels, order, shards and epochs as the operator of DALI 2.4, bit
    for bit. All its arguments are here; their meaning is in DALI's documentation, and what is said
    below is only what is added.

    Args:
        device: "cpu" or None.
        bytes_per_sample_hint, dont_use_mmap, read_ahead, tensor_init_bytes: accepted; there is
            nothing they change.
        file_root: may be left out, with files and file_list, where the backend knows the samples by
            itself. They are then chosen, labelled and ordered as if its root were `file_root`.
        lazy_init: look for the files and open the backend at the first run or the first
            `reader_meta`, not here.
        prefetch_queue_depth: batches read ahead of DALI, which itself asks the pipeline's
            `prefetch_queue_depth` batches ahead of the user. At least one a lane of the backend.
        seed: of `random_shuffle`. None: the seed the pipeline would have dealt to `fn.readers.file`
            in this place, so that the order is the same. (Random operators *behind* it that have no
            seed of their own are then dealt other seeds than before, because DALI deals none to
            this one: give them seeds.) In a pipeline without a seed: a random one, or, with
            enable_checkpointing, a fixed one, so that a restored pipeline finds its order.
        skip_cached_images: must be False: the cache of the image decoder cannot be asked from here.
        backend: which storage backend reads; `python -m dali_storage` lists those that work on this
            machine.
        backend_options: keyword arguments of the backend's reader class.

    Returns:
        `(data, labels)`: the files' bytes, uint8, 1-D; their labels, int32, shape (1,). In host
        memory, which DALI shares and does not copy; it is used again when the last output that
        looks into it is gone.

    Raises:
        ValueError, TypeError: an argument is wrong; names it.
        OSError: files or directories cannot be listed (at once), or read (from the `pipe.run()`
            that schedules their batch; the batches before it are delivered, and `run()` again tries
            that batch again).
        BackendUnavailable: the backend does not work on this machine, and why.
        RuntimeError: in a process forked from the one that made it, or in a pipeline with
            debug=True.
    """
    _check(device, skip_cached_images)
    storage = registry.configure(backend, _options(backend_options))
    order = OrderOptions(
        seed=-1 if seed is None else seed,
        random_shuffle=random_shuffle,
        initial_fill=initial_fill,
        shuffle_after_epoch=shuffle_after_epoch,
        shuffle_after_epoch_seed=shuffle_after_epoch_seed,
        num_shards=num_shards,
        shard_id=shard_id,
        stick_to_shard=stick_to_shard,
        pad_last_batch=pad_last_batch,
    )
    samples_are_named = any(given is not None for given in (file_root, files, file_list))

    def open_storage() -> tuple[Catalog, Reader]:
        catalog = discovery.discover(
            None if samples_are_named else storage.tree(),
            file_root=file_root,
            files=files,
            labels=labels,
            file_list=file_list,
            file_filters=file_filters,
            dir_filters=dir_filters,
            case_sensitive_filter=case_sensitive_filter,
        )
        reader_meta(len(catalog), order)  # refuses more shards than samples
        return catalog, storage.open(catalog)

    depth = _depth(prefetch_queue_depth)
    return dali.add_reader(
        name,
        lambda name: Source(name=name, opener=open_storage, order=order, depth=depth),
        inherits_seed=seed is None,
        preserve=bool(preserve),
        lazy=bool(lazy_init),
    )


def _options(backend_options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(backend_options or {}, Mapping):
        raise TypeError(f"backend_options must be a mapping, not {backend_options!r}")
    return backend_options or {}


def _check(device: str | None, skip_cached_images: bool) -> None:
    if device not in (None, "cpu"):
        raise ValueError(f"device must be 'cpu', as for fn.readers.file, not {device!r}")
    if skip_cached_images:
        raise ValueError(
            "skip_cached_images=True is not supported: the decoder's cache cannot be seen from here"
        )


def _depth(prefetch_queue_depth: int | None) -> int:
    if prefetch_queue_depth is None:  # as in DALI, the default
        return 1
    if not isinstance(prefetch_queue_depth, (int, np.integer)):
        raise TypeError(f"prefetch_queue_depth must be an integer, not {prefetch_queue_depth!r}")
    if prefetch_queue_depth < 1:
        raise ValueError(f"prefetch_queue_depth must be at least 1, not {prefetch_queue_depth!r}")
    return int(prefetch_queue_depth)
