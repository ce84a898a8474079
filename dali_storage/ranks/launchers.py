"""The variables that launchers of processes set in the environment."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from ..contract.options import require_integer

_Variables: TypeAlias = tuple[str, str, str]  # of the rank, the number of processes, the local rank

TORCH = "RANK", "WORLD_SIZE", "LOCAL_RANK"  # torchrun, Lightning, Accelerate, DeepSpeed
# Not SLURM_NTASKS, the number of the job's tasks, also in a batch script or a shell of salloc,
# which are one process. SLURM_STEP_NUM_TASKS is set by srun alone (Slurm, srun(1)).
_SLURM = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
STARTERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI, srun --mpi=pmi2
    _SLURM,
)
# Set by launchers that another launcher may start once per machine: torchrun, Lightning.
_NESTED = "TORCHELASTIC_RUN_ID", "NODE_RANK"
REMEDY = (
    "or set the shard yourself: shard_id and num_shards of a reader, "
    "shard=Shard(rank, world, local_rank) of a loader"
)


@dataclass(frozen=True, slots=True)
class Claim:
    """The rank according to one source, with its name and its variables in the environment."""

    source: str
    rank: int
    world: int
    local_rank: int | None = None
    variables: _Variables | None = None

    def agrees(self, other: "Claim") -> bool:
        """Return whether both have the same rank and number of ranks."""
        return (self.rank, self.world) == (other.rank, other.world)

    def __str__(self) -> str:
        return f"{self.source} says rank {self.rank} of {self.world}"


def launched() -> Claim:
    """The claim of the environment: of the innermost launcher if several are nested."""
    place, *others = [*of_environment([TORCH, *STARTERS]), Claim("nothing", 0, 1, 0)]
    if place.variables == TORCH and not os.environ.keys() & {*_NESTED}:
        for other in others[:-1]:
            if other.world >= place.world:  # not one process per machine, which starts others
                refuse_different(place, other)
    if place.variables is None and "PMIX_RANK" in os.environ:
        raise ValueError(
            "the environment has PMIX_RANK, but no number of processes, for which PMIx has no "
            f"variable: set RANK, WORLD_SIZE and LOCAL_RANK, as torchrun does, {REMEDY}"
        )
    return place


def of_environment(launchers: Sequence[_Variables]) -> Iterator[Claim]:
    """The claims of all launchers with variables in the environment."""
    for variables in launchers:
        given = [name for name in variables if name in os.environ]
        if variables[1] in given or (given and variables != _SLURM):
            yield _of_variables(*variables)


def _of_variables(rank: str, world: str, local_rank: str) -> Claim:
    variables = named = rank, world, local_rank
    if rank not in os.environ and {"NODE_RANK", local_rank} <= os.environ.keys():
        named = local_rank, world, local_rank  # Lightning's environment, see here()
    if named[0] not in os.environ or world not in os.environ:
        refuse_missing(variables, named)
    if named is not variables and read("NODE_RANK", range(2**31)):
        raise RuntimeError(
            f"the environment has NODE_RANK={os.environ['NODE_RANK']}, but not RANK, which is not "
            f"known before torch's process group is initialised: use the loader in fit() or later, "
            f"{REMEDY}"
        )
    size = read(world, range(1, 2**31))
    local = read(local_rank, range(size)) if local_rank in os.environ else None
    source = f"the environment ({named[0]}, {world})"
    return Claim(source, read(named[0], range(size)), size, local, variables)


def refuse_missing(variables: _Variables, needed: _Variables) -> NoReturn:
    """Refuse an environment in which needed variables of a launcher are missing."""
    missing = [name for name in dict.fromkeys(needed) if name not in os.environ]
    given = ", ".join(name for name in dict.fromkeys(needed) if name in os.environ)
    raise ValueError(
        f"the environment has {given}, but not {' and '.join(missing)}: set all of "
        f"{', '.join(variables[:2])} and {variables[2]}, as torchrun does, {REMEDY}"
    )


def refuse_different(one: Claim, other: Claim) -> None:
    """Refuse two sources that disagree."""
    if not one.agrees(other):
        raise RuntimeError(f"{one}, but {other}: correct the wrong one, {REMEDY}")


def read(name: str, known: range) -> int:
    """The number in a set variable."""
    text = os.environ[name]
    value: Any = int(text) if text.isdecimal() else text  # int() would also accept "1_0" and " 1"
    require_integer("environment", name, value, known)
    return int(value)
