"""Which part of a data set a process reads. Asks what is loaded already; imports nothing."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from .options import require_integer

_Variables: TypeAlias = tuple[str, str, str]  # of the rank, the number of processes, the local rank

_TORCH = "RANK", "WORLD_SIZE", "LOCAL_RANK"  # torchrun, Lightning, Accelerate, DeepSpeed
# Not SLURM_NTASKS: that is the number of the job's tasks, also in a batch script or a shell of
# salloc, which are one process. SLURM_STEP_NUM_TASKS is set by srun alone (Slurm, srun(1)).
_SLURM = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
_STARTERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI, srun --mpi=pmi2
    _SLURM,
)
# Set by launchers that may be started once on every machine by another one: torchrun, Lightning.
_NESTED = "TORCHELASTIC_RUN_ID", "NODE_RANK"
_REMEDY = (
    "or say it yourself: shard_id and num_shards of a reader, "
    "shard=Shard(rank, world, local_rank) of a loader"
)


@dataclass(frozen=True, slots=True)
class Shard:
    """A process among those that train together.

    Attributes:
        rank: the process, from 0 to `world` - 1, over all machines; or its rank in a group.
        world: the number of processes, or of those in the group.
        local_rank: the process among all those of its machine; the number of its GPU.
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
        """The shard of this process: what is known of it now.

        1. `group`: a process group of torch, or one dimension of a DeviceMesh (`mesh["data"]`).
           Needed if several ranks read the same samples, as with tensor or pipeline parallelism.
        2. What is imported and initialised: torch.distributed, Ray Train, JAX. If no launcher has
           set a local rank, this is the rank: right on a single machine.
        3. RANK, WORLD_SIZE and LOCAL_RANK in the environment (torchrun and others). Lightning sets
           no RANK; on its first machine (NODE_RANK=0), it is LOCAL_RANK.
        4. The variables of MPI (mpirun), then of a step of Slurm (srun).
        5. Otherwise process 0 of 1. That includes the first process of a Lightning script, until
           `fit()` starts the others: ask after that.

        Raises:
            ValueError: a variable is missing, or its value is no rank; or the group is none.
            RuntimeError: two of these disagree, or the rank is not known yet.
        """
        place = _find(group)
        whole = place if group is None else _torch() or place
        return cls(place.rank, place.world, _local_rank(whole))


def shard(group: Any = None) -> dict[str, int]:
    """The shard of this process as arguments of a reader: `readers.file(..., **shard())`.

    The rules are those of `loaders.Shard.here(group)`, but for the local rank: it is not needed.

    Returns:
        `shard_id` and `num_shards`; 0 and 1 if nothing says that there are other processes.

    Raises:
        ValueError, RuntimeError: as by `Shard.here()`.
    """
    place = _find(group)
    return {"shard_id": place.rank, "num_shards": place.world}


@dataclass(frozen=True, slots=True)
class _Place:
    """What one source says: its name, and the variables that it has in the environment."""

    source: str
    rank: int
    world: int
    local_rank: int | None = None
    variables: _Variables | None = None

    def agrees(self, other: "_Place") -> bool:
        return (self.rank, self.world) == (other.rank, other.world)

    def __str__(self) -> str:
        return f"{self.source} says rank {self.rank} of {self.world}"


def _find(group: Any) -> _Place:
    if group is not None:
        return _of_group(group)
    initialised = [place for place in (_torch(), _ray(), _jax()) if place]
    if not initialised:
        return _launched()
    first = initialised[0]
    for other in initialised[1:]:
        _refuse_different(first, other)
    for name, value in zip(_TORCH, (first.rank, first.world), strict=False):
        if name in os.environ and _read(name, range(2**31)) != value:
            raise RuntimeError(
                f"{first}, the environment {name}={os.environ[name]}: pass init_process_group() "
                f"what the launcher has set, {_REMEDY}"
            )
    return first


def _of_group(group: Any) -> _Place:
    """Of a ProcessGroup, which has a rank, or a DeviceMesh, which has one in each dimension."""
    mesh = hasattr(group, "get_local_rank")
    if mesh and group.ndim != 1:
        names = group.mesh_dim_names or ()
        raise ValueError(
            f"group is a mesh of {group.ndim} dimensions {names}: give the one over which the data "
            "is split, such as mesh['data']"
        )
    if not mesh and not hasattr(group, "rank"):  # new_group() returns a number to other ranks
        raise ValueError(
            f"group must be a process group that has this process, or a DeviceMesh, not {group!r}"
        )
    return _Place("group", group.get_local_rank() if mesh else group.rank(), group.size())


def _torch() -> _Place | None:
    distributed: Any = sys.modules.get("torch.distributed")
    if not distributed or not distributed.is_available() or not distributed.is_initialized():
        return None
    rank, world = distributed.get_rank(), distributed.get_world_size()
    return _Place("torch's process group", rank, world)


def _ray() -> _Place | None:
    train: Any = sys.modules.get("ray.train")
    try:
        context = train.get_context() if train else None
    except (RuntimeError, DeprecationWarning):  # no worker of Ray Train; a trial of Ray Tune
        return None
    if context is None or context.get_world_rank() is None:
        return None
    ranks = context.get_world_rank(), context.get_world_size(), context.get_local_rank()
    return _Place("Ray Train", *ranks)


def _jax() -> _Place | None:
    # Asked for its process_index(), JAX would otherwise initialise its devices.
    initialised = getattr(sys.modules.get("jax.distributed"), "is_initialized", None)
    if not initialised or not initialised():
        return None
    jax: Any = sys.modules["jax"]
    return _Place("JAX", jax.process_index(), jax.process_count())


def _launched() -> _Place:
    """What the environment says: the launcher nearest to this process, if several are nested."""
    place, *others = [*_of_environment([_TORCH, *_STARTERS]), _Place("nothing", 0, 1, 0)]
    if place.variables == _TORCH and not os.environ.keys() & {*_NESTED}:
        for other in others[:-1]:
            if other.world >= place.world:  # not one process a machine, which starts some
                _refuse_different(place, other)
    if place.variables is None and "PMIX_RANK" in os.environ:
        raise ValueError(
            "the environment has PMIX_RANK, but no number of processes, for which PMIx has no "
            f"variable: set RANK, WORLD_SIZE and LOCAL_RANK, as torchrun does, {_REMEDY}"
        )
    return place


def _local_rank(place: _Place) -> int:
    if "LOCAL_RANK" in os.environ:
        return _read("LOCAL_RANK", range(place.world))
    # Of mpirun and srun only the same ranks: they may start one process a machine, which then
    # starts those of the group.
    for other in (place, *_of_environment(_STARTERS)):
        if other.agrees(place) and other.local_rank is not None:
            return other.local_rank
    if place.variables:
        _refuse_missing(place.variables, place.variables)
    return place.rank


def _of_environment(launchers: Sequence[_Variables]) -> Iterator[_Place]:
    for variables in launchers:
        given = [name for name in variables if name in os.environ]
        if variables[1] in given or (given and variables != _SLURM):
            yield _of_variables(*variables)


def _of_variables(rank: str, world: str, local_rank: str) -> _Place:
    variables = named = rank, world, local_rank
    if rank not in os.environ and {"NODE_RANK", local_rank} <= os.environ.keys():
        named = local_rank, world, local_rank  # Lightning's environment, see here()
    if named[0] not in os.environ or world not in os.environ:
        _refuse_missing(variables, named)
    if named is not variables and _read("NODE_RANK", range(2**31)):
        raise RuntimeError(
            f"the environment has NODE_RANK={os.environ['NODE_RANK']}, but not RANK, which is not "
            f"known before torch's process group is initialised: use the loader in fit() or later, "
            f"{_REMEDY}"
        )
    size = _read(world, range(1, 2**31))
    local = _read(local_rank, range(size)) if local_rank in os.environ else None
    source = f"the environment ({named[0]}, {world})"
    return _Place(source, _read(named[0], range(size)), size, local, variables)


def _refuse_missing(variables: _Variables, needed: _Variables) -> NoReturn:
    missing = [name for name in dict.fromkeys(needed) if name not in os.environ]
    given = ", ".join(name for name in dict.fromkeys(needed) if name in os.environ)
    raise ValueError(
        f"the environment has {given}, but not {' and '.join(missing)}: set all of "
        f"{', '.join(variables[:2])} and {variables[2]}, as torchrun does, {_REMEDY}"
    )


def _refuse_different(one: _Place, other: _Place) -> None:
    if not one.agrees(other):
        raise RuntimeError(f"{one}, and {other}: correct the wrong one, {_REMEDY}")


def _read(name: str, known: range) -> int:
    text = os.environ[name]
    value: Any = int(text) if text.isdecimal() else text  # int() would also take "1_0" and " 1"
    require_integer("environment", name, value, known)
    return int(value)
