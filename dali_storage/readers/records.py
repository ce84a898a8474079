"""`readers.records`: samples that are byte ranges of files."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali.pipeline import do_not_convert

from .._types import PathLike
from ..catalog import Catalog, Tree
from ..contents import Format
from ..dali import DataNode
from ..formats import plain
from .arguments import add, prepare

Column: TypeAlias = Sequence[int] | NDArray[np.integer[Any]] | PathLike
"""Integers, or the path of a .npy file of them."""


class _Records(Format):
    operator = "records"
    schema = "Records"


@do_not_convert  # type: ignore[untyped-decorator]  # AutoGraph has nothing to rewrite
def records(
    *,
    files: PathLike | Sequence[PathLike],
    offsets: Column,
    sizes: Column | int,
    file_ids: Column | None = None,
    labels: Column | None = None,
    device: str | None = None,
    name: str | None = None,
    initial_fill: int = 1024,
    lazy_init: bool = False,
    num_shards: int = 1,
    pad_last_batch: bool = False,
    prefetch_queue_depth: int = 1,
    preserve: bool = False,
    random_shuffle: bool = False,
    seed: int | None = None,
    shard_id: int = 0,
    shuffle_after_epoch: bool = False,
    shuffle_after_epoch_seed: int | None = None,
    stick_to_shard: bool = False,
    backend: str = "python-file",
    backend_options: Mapping[str, Any] | None = None,
    return_index: bool = False,
    pinned: bool | None = None,
) -> tuple[DataNode, ...]:
    """Samples that are byte ranges of files, in the order of `readers.file`.

    TODO of the owner: the docstring.
    """
    arguments = {**locals(), "skip_cached_images": False}

    def find(tree: Callable[[], Tree | None]) -> Catalog:
        return plain.find(files, offsets, sizes, file_ids, labels)

    return add(arguments, prepare(arguments, find), _Records())
