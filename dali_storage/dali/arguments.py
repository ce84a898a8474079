"""The arguments of all readers as a value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..contract._types import PathLike
from ..contract.reader import Reader


@dataclass(frozen=True, kw_only=True)
class Common:
    """The arguments of all readers, as given; `readers.file` describes them."""

    backend: str | type[Reader] | None = None
    backend_options: Mapping[str, Any] | None = None
    bad_samples: PathLike | None = None
    buffer_bytes: int | None = None
    bytes_per_sample_hint: int | Sequence[int] = 0
    check: bool | None = False
    device: str | None = None
    dont_use_mmap: bool | None = False
    epoch_size: int | str | None = None
    initial_fill: int | None = 1024
    lazy_init: bool | None = False
    max_replaced: int | None = None
    name: str | None = None
    num_shards: int | None = 1
    on_error: str | None = "raise"
    order: Any = None
    pad_last_batch: bool | None = False
    pinned: bool | None = None
    prefetch_queue_depth: int | None = 1
    preserve: bool | None = False
    random_shuffle: bool | None = False
    read_ahead: bool | None = False
    receipt: str | None = None
    resume: Mapping[str, Any] | None = None
    return_index: bool | None = False
    seed: int | None = None
    shard_id: int | None = 0
    shuffle_after_epoch: bool | None = False
    shuffle_after_epoch_seed: int | None = None
    skip_cached_images: bool | None = False
    source_info: bool | None = None
    stall_after: float | None = 60.0
    stick_to_shard: bool | None = False
    tensor_init_bytes: int | None = 1 << 20
    use_o_direct: bool | None = False
    weights: Any = None
