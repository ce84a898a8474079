"""Which part of a data set a process reads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shard:
    """A process among those that train together.

    Attributes:
        rank: the process, from 0 to `world` - 1, over all machines.
        world: the number of processes.
        local_rank: the process among those of its machine; the number of its GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @classmethod
    def here(cls) -> "Shard":
        """The shard of this process."""
        raise NotImplementedError
