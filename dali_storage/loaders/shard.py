"""Which part of a data set a process reads."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..options import require_integer

_TORCH = "RANK", "WORLD_SIZE", "LOCAL_RANK"
_LAUNCHERS = (
    _TORCH,  # torchrun, Lightning, Accelerate, DeepSpeed
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # mpirun
    # Not SLURM_NTASKS: that is the number of the job's tasks, also in a batch script or a shell of
    # salloc, which are one process. SLURM_STEP_NUM_TASKS is set by srun alone (Slurm, srun(1)).
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_REMEDY = "or give the loader its shard: shard=Shard(rank, world, local_rank)"


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

    def __post_init__(self) -> None:
        require_integer("Shard", "world", self.world, range(1, 2**31))
        require_integer("Shard", "rank", self.rank, range(self.world))
        require_integer("Shard", "local_rank", self.local_rank, range(self.world))

    @classmethod
    def here(cls) -> "Shard":
        """The shard of this process: what is known of it now.

        1. The process group of torch.distributed, if torch is imported and the group initialised.
           If its launcher has set no local rank, this is the rank: right on a single machine.
        2. RANK, WORLD_SIZE and LOCAL_RANK in the environment (torchrun and others). Lightning sets
           no RANK; on its first machine (NODE_RANK=0), it is LOCAL_RANK.
        3. The variables of Open MPI (mpirun), then of a step of Slurm (srun).
        4. Otherwise process 0 of 1. That includes the first process of a Lightning script, until
           `fit()` starts the others: ask after that.

        Raises:
            ValueError: a variable is missing, or its value is no rank.
            RuntimeError: process group and environment disagree, or the rank is not known yet.
        """
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            return _of_group(distributed.get_rank(), distributed.get_world_size())
        return _of_environment(_LAUNCHERS) or cls()


def _of_group(rank: int, world: int) -> Shard:
    for name, value in zip(_TORCH, (rank, world), strict=False):
        if name in os.environ and _read(name, range(2**31)) != value:
            raise RuntimeError(
                f"torch's process group says rank {rank} of {world}, the environment "
                f"{name}={os.environ[name]}: pass init_process_group() what the launcher has set, "
                f"{_REMEDY}"
            )
    if "LOCAL_RANK" in os.environ:
        return Shard(rank, world, _read("LOCAL_RANK", range(world)))
    # Of mpirun and srun only the same ranks: they may start one process a machine, which then
    # starts those of the group.
    started = _of_environment(_LAUNCHERS[1:])
    same = started is not None and (started.rank, started.world) == (rank, world)
    return started if started and same else Shard(rank, world, rank)


def _of_environment(launchers: Sequence[tuple[str, str, str]]) -> Shard | None:
    for launcher in launchers:
        given = [name for name in launcher if name in os.environ]
        if launcher[1] in given or (given and launcher is _TORCH):
            return _of_variables(*launcher)
    return None


def _of_variables(rank: str, world: str, local_rank: str) -> Shard:
    names = [rank, world, local_rank]
    if rank not in os.environ and {"NODE_RANK", local_rank} <= os.environ.keys():
        names[0] = local_rank  # Lightning's environment, see here()
    missing = [name for name in names if name not in os.environ]
    if missing:
        given = ", ".join(name for name in names if name in os.environ)
        raise ValueError(
            f"the environment has {given}, but not {' and '.join(missing)}: set all of "
            f"{rank}, {world} and {local_rank}, as torchrun does, {_REMEDY}"
        )
    if names[0] == local_rank and _read("NODE_RANK", range(2**31)):
        raise RuntimeError(
            f"the environment has NODE_RANK={os.environ['NODE_RANK']}, but not RANK, which is not "
            f"known before torch's process group is initialised: use the loader in fit() or later, "
            f"{_REMEDY}"
        )
    size = _read(world, range(1, 2**31))
    return Shard(_read(names[0], range(size)), size, _read(local_rank, range(size)))


def _read(name: str, known: range) -> int:
    text = os.environ[name]
    value: Any = int(text) if text.isdecimal() else text  # int() would also take "1_0" and " 1"
    require_integer("environment", name, value, known)
    return int(value)
