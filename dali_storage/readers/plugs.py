"""The arguments of all readers as a value, and the composition root.

It puts the plugs that the arguments ask for into the slots of a reader. No DALI here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..contract._types import PathLike
from ..contract.options import dali_flag, stall_seconds
from ..contract.reader import Reader
from ..observing.meter import Meter
from ..reading.buffers import Room
from ..reading.opening import host_memory
from ..reading.slots import Memory


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


_OWN_ORDER = "weights", "order", "epoch_size"
_BAD_SAMPLES = "on_error", "check", "max_replaced", "bad_samples"


def plugs(arguments: Common, device: str) -> dict[str, Any]:
    """Return the contents of the slots of an `Opening` for the arguments of a reader.

    What no argument asks for is not imported.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
    """
    stall_after = stall_seconds(arguments.stall_after)
    pinned = None if arguments.pinned is None else dali_flag("pinned", arguments.pinned)
    found: dict[str, Any] = {
        "observe": partial(Meter, stall_after=stall_after),
        "memory": partial(batch_memory, pinned=pinned),
    }
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if own := [name for name in _OWN_ORDER if name in given]:
        from ..order.sampling.arguments import own_order

        found["ordering"] = own_order(own, given)
    about = {name: given[name] for name in _BAD_SAMPLES if name in given}
    if any(value is not getattr(Common, name) for name, value in about.items()):
        from ..bad_samples.arguments import bad_sample_options

        found["on_error"] = bad_sample_options(about, device)
    if arguments.receipt is not None:
        from ..receipts.ledger import receipts_of

        found["ledger"] = receipts_of(arguments.receipt, device, arguments.pad_last_batch)
    if arguments.resume is not None:
        from ..saving.positions import resume

        found["resume"] = partial(resume, state=arguments.resume)
    return found


def batch_memory(
    name: str, reader: Reader, gpu: int | None, *, pinned: bool | None = None
) -> Callable[[Room], Memory]:
    """Choose the memory of batches: `Opening.memory`. `pinned` is the option of `readers.file`."""
    if gpu is None and reader.gpu is None and not pinned:
        return host_memory(name, reader, gpu)
    from ..dali.gpu_memory import choose

    return choose(name, reader, gpu, pinned)
