"""A comparison of what all ranks have."""

import sys
from collections.abc import Mapping
from typing import Any


def check(state: Mapping[str, Any], group: Any = None) -> None:
    """Refuse to go on unless all ranks have the same state of a reader.

    A rank that missed a `set_weights()`, or has another seed or another `epoch_size`, would give
    samples twice, and leave others out. All ranks of the group must call this, after equally many
    batches.

    Args:
        state: of `readers.state()`, or one of `loader.state_dict()["readers"]`.
        group: a process group of torch; by default that of all processes. Without torch.distributed
            there is nothing to compare.

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
                    f"the ranks have other states: {name} is {first!r:.80} on rank 0, and "
                    f"{found!r:.80} on rank {rank}; give all ranks the same arguments, and call "
                    "set_weights() on all of them with the same weights and at"
                )
