"""A comparison of the states of all ranks."""

import sys
from collections.abc import Mapping
from typing import Any


def check(state: Mapping[str, Any], group: Any = None) -> None:
    """Raise unless all ranks have the same state of a reader.

    A rank without a `set_weights()` call of the others, or with another seed or `epoch_size`, would
    deliver some samples twice, and omit others. All ranks of the group must call this, after
    equally many batches.

    Args:
        state: the result of `readers.state()`, or a value in `loader.state_dict()["readers"]`.
        group: a process group of torch; by default all processes. Without torch.distributed there
            is nothing to compare.

    Raises:
        ValueError: the states differ; names the entries, and two ranks.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_available() or not distributed.is_initialized():
        return
    states: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(states, dict(state), group=group)
    for rank, other in enumerate(states):
        for name in sorted(states[0].keys() | other.keys()):
            first, found = states[0].get(name), other.get(name)
            if first != found:
                raise ValueError(
                    f"the states of the ranks differ: {name} is {first!r:.80} on rank 0, but "
                    f"{found!r:.80} on rank {rank}; give all ranks the same arguments, and call "
                    "set_weights() on all ranks with the same weights and at"
                )
