"""The shard of a data set for this process, found from loaded modules without imports.

`launchers` reads what starters of processes set in the environment, `agreement` compares ranks,
`run` tells one run from another. Keeps nothing. Imports contract/.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from ..contract.options import require_integer
from .agreement import check
from .launchers import (
    REMEDY,
    STARTERS,
    TORCH,
    Claim,
    launched,
    of_environment,
    read,
    refuse_different,
    refuse_missing,
)

__all__ = ["Shard", "check", "shard"]


@dataclass(frozen=True, slots=True)
class Shard:
    """The place of a process among all processes of a training.

    Attributes:
        rank: the process, from 0 to `world` - 1, over all machines; or its rank in a group.
        world: the number of processes, in total or in the group.
        local_rank: the number of the process on its machine, and of its GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        require_integer("Shard", "world", self.world, range(1, 2**31))
        require_integer("Shard", "rank", self.rank, range(self.world))
        require_integer("Shard", "local_rank", self.local_rank, range(2**31))

    @classmethod
    def here(cls, group: Any = None) -> "Shard":
        """The shard of this process, as far as known now, from the first source of this list.

        1. `group`: a process group of torch, or one dimension of a DeviceMesh (`mesh["data"]`).
           Needed if several ranks read the same samples, as with tensor or pipeline parallelism.
        2. An initialised framework: torch.distributed, Ray Train, JAX. If no launcher has set a
           local rank, the local rank is the rank: right on a single machine.
        3. RANK, WORLD_SIZE and LOCAL_RANK in the environment (torchrun and others). Lightning does
           not set RANK; on its first machine (NODE_RANK=0), LOCAL_RANK is the rank.
        4. The variables of MPI (mpirun), then of a step of Slurm (srun).
        5. Otherwise process 0 of 1. This includes the first process of a Lightning script until
           `fit()` starts the others: call this method later.

        Raises:
            ValueError: a variable is missing or not a rank; or the group is not a group.
            RuntimeError: two sources disagree, or the rank is not known yet.
        """
        place = _find(group)
        whole = place if group is None else _torch() or place
        return cls(place.rank, place.world, _local_rank(whole))


def shard(group: Any = None) -> dict[str, int]:
    """The shard of this process as arguments of a reader: `readers.file(..., **shard())`.

    The rules are the same as for `loaders.Shard.here(group)`, without the local rank.

    Returns:
        `shard_id` and `num_shards`; 0 and 1 without any sign of other processes.

    Raises:
        ValueError, RuntimeError: as by `Shard.here()`.
    """
    place = _find(group)
    return {"shard_id": place.rank, "num_shards": place.world}


def _find(group: Any) -> Claim:
    if group is not None:
        return _of_group(group)
    initialised = [place for place in (_torch(), _ray(), _jax()) if place]
    if not initialised:
        return launched()
    first = initialised[0]
    for other in initialised[1:]:
        refuse_different(first, other)
    for name, value in zip(TORCH, (first.rank, first.world), strict=False):
        if name in os.environ and read(name, range(2**31)) != value:
            raise RuntimeError(
                f"{first}, the environment {name}={os.environ[name]}: pass the launcher's values "
                f"to init_process_group(), {REMEDY}"
            )
    return first


def _of_group(group: Any) -> Claim:
    """The claim of a ProcessGroup with a rank, or of a DeviceMesh with one dimension."""
    mesh = hasattr(group, "get_local_rank")
    if mesh and group.ndim != 1:
        names = group.mesh_dim_names or ()
        raise ValueError(
            f"group is a mesh of {group.ndim} dimensions {names}: give the dimension that splits "
            "the data, such as mesh['data']"
        )
    if not mesh and not hasattr(group, "rank"):  # new_group() returns a number to other ranks
        raise ValueError(
            f"group must be a process group with this process, or a DeviceMesh, not {group!r}"
        )
    return Claim("group", group.get_local_rank() if mesh else group.rank(), group.size())


def _torch() -> Claim | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Claim("torch's process group", distributed.get_rank(), distributed.get_world_size())


def _ray() -> Claim | None:
    train: Any = sys.modules.get("ray.train")
    try:
        context = train.get_context() if train else None
    except (RuntimeError, DeprecationWarning):  # not a worker of Ray Train; a trial of Ray Tune
        return None
    if context is None or context.get_world_rank() is None:
        return None
    ranks = context.get_world_rank(), context.get_world_size(), context.get_local_rank()
    return Claim("Ray Train", *ranks)


def _jax() -> Claim | None:
    # Otherwise, JAX's process_index() would initialise its devices.
    initialised = getattr(sys.modules.get("jax.distributed"), "is_initialized", None)
    if not initialised or not initialised():
        return None
    jax: Any = sys.modules["jax"]
    return Claim("JAX", jax.process_index(), jax.process_count())


def _local_rank(place: Claim) -> int:
    if "LOCAL_RANK" in os.environ:
        return read("LOCAL_RANK", range(place.world))
    # From mpirun and srun only with the same ranks: they may start one process per machine, which
    # then starts the processes of the group.
    for other in (place, *of_environment(STARTERS)):
        if other.agrees(place) and other.local_rank is not None:
            return other.local_rank
    if place.variables:
        refuse_missing(place.variables, place.variables)
    return place.rank
