"""Which shard a process takes: groups, frameworks, launchers' environments, none of them."""

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import dali_storage
from dali_storage.loaders import Shard

BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
TORCHRUN = BY_HAND | {"TORCHELASTIC_RUN_ID": "none"}
LIGHTNING = {"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}
MPIRUN |= {"OMPI_COMM_WORLD_LOCAL_RANK": "0"}
MPICH = {"PMI_RANK": "2", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}
# A batch script is itself process 0 of its job; srun adds the numbers of the step.
SLURM_JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SRUN = SLURM_JOB | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
SALLOC_SHELL = SLURM_JOB | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Sets variables; none of a launcher is set before."""
    for name in [*TORCHRUN, *LIGHTNING, *MPIRUN, *MPICH, *SRUN, *SALLOC_SHELL, "PMIX_RANK"]:
        monkeypatch.delenv(name, raising=False)

    def set_all(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def group():
    """A process group of this process alone; its rank and size are 0 and 1."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0), "world must be an integer from 1"),
        ((2, 2), "rank must be an integer from 0 to 1, not 2"),
        ((-1, 2), "rank must be an integer from 0 to 1, not -1"),
        ((0, 2, -2), "local_rank must be an integer from 0 to 2147483647, not -2"),
        (("0", 2), "rank must be an integer from 0 to 1, not '0'"),
        ((True, 2), "rank must be an integer from 0 to 1, not True"),
        ((0, 2.0), "world must be an integer from 1 to 2147483647, not 2.0"),
    ],
)
def test_wrong_shards_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        Shard(*arguments)


class Distributed:
    """torch.distributed, with a process group of any size."""

    def __init__(self, rank: int, world: int) -> None:
        self.get_rank, self.get_world_size = lambda: rank, lambda: world
        self.is_available = self.is_initialized = lambda: True


class Ray:
    """ray.train, in a worker or elsewhere."""

    def __init__(self, *ranks: int | None, error: type[Exception] = RuntimeError) -> None:
        self.ranks, self.error = ranks, error

    def get_context(self):
        if not self.ranks:
            raise self.error("cannot be used outside of a Ray Train training function")
        names = "get_world_rank", "get_world_size", "get_local_rank"
        calls = {name: lambda rank=rank: rank for name, rank in zip(names, self.ranks, strict=True)}
        return SimpleNamespace(**calls)


class Jax:
    """jax and jax.distributed, on more than one host."""

    def __init__(self, rank: int, world: int) -> None:
        self.process_index, self.process_count = lambda: rank, lambda: world
        self.is_initialized = lambda: True


@pytest.fixture
def loaded(monkeypatch):
    def load(**frameworks):
        for name, module in frameworks.items():
            names = {"torch": ["torch.distributed"], "ray": ["ray.train"]}
            for each in names.get(name, ["jax", "jax.distributed"]):
                monkeypatch.setitem(sys.modules, each, module)

    return load


def steps(rank, world):
    return SRUN | {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": world}


TORCH, RAY, JAX = {"torch": Distributed(3, 4)}, {"ray": Ray(3, 4, 1)}, {"jax": Jax(3, 4)}
OUTSIDE = Ray(), Ray(error=DeprecationWarning), Ray(None, None, None)  # of the workers of Ray
HERE = [  # frameworks, variables, and where that is
    ({}, {}, Shard(0, 1, 0)),
    ({}, TORCHRUN, Shard(3, 4, 1)),
    ({}, LIGHTNING, Shard(1, 2, 1)),
    ({}, LIGHTNING | {"LOCAL_RANK": "0"}, Shard(0, 2, 0)),
    ({}, BY_HAND, Shard(3, 4, 1)),
    ({}, MPIRUN, Shard(2, 3, 0)),
    ({}, MPIRUN | {"PMIX_RANK": "2"}, Shard(2, 3, 0)),
    ({}, MPICH, Shard(2, 3, 0)),
    ({}, SRUN, Shard(5, 8, 1)),
    ({}, SLURM_JOB, Shard(0, 1, 0)),
    ({}, SALLOC_SHELL, Shard(0, 1, 0)),
    ({}, SRUN | MPIRUN, Shard(2, 3, 0)),
    ({}, SRUN | TORCHRUN, Shard(3, 4, 1)),
    ({}, SRUN | LIGHTNING, Shard(1, 2, 1)),
    # srun starts the daemons of mpirun, one on each machine; --mpi=pmi2 starts the tasks.
    ({}, SRUN | MPICH, Shard(2, 3, 0)),
    ({}, SRUN | {"PMI_RANK": "5", "PMI_SIZE": "8"}, Shard(5, 8, 1)),
    # Started once on every machine, what DeepSpeed has set is not what srun has.
    ({}, BY_HAND | steps("1", "2"), Shard(3, 4, 1)),
    ({}, BY_HAND | steps("3", "4"), Shard(3, 4, 1)),
    ({}, {"NODE_RANK": "1"}, Shard(0, 1, 0)),
    ({}, BY_HAND | {"NODE_RANK": "1"}, Shard(3, 4, 1)),
    # A group knows the rank, and the launcher the local one.
    (TORCH, {}, Shard(3, 4, 3)),
    (TORCH, TORCHRUN, Shard(3, 4, 1)),
    (TORCH, {"LOCAL_RANK": "1", "NODE_RANK": "1"}, Shard(3, 4, 1)),
    (TORCH, {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"}, Shard(3, 4, 1)),
    (TORCH, steps("3", "4"), Shard(3, 4, 1)),
    (TORCH, steps("1", "2"), Shard(3, 4, 3)),  # srun has started a process a machine, and that all
    (TORCH, SLURM_JOB, Shard(3, 4, 3)),
    ({"torch": SimpleNamespace(is_available=lambda: False)}, {}, Shard()),
    (RAY, {}, Shard(3, 4, 1)),
    (RAY, SRUN | LIGHTNING | {"WORLD_SIZE": "4"}, Shard(3, 4, 1)),  # srun has started Ray
    (RAY | TORCH, SRUN | LIGHTNING | {"WORLD_SIZE": "4"}, Shard(3, 4, 1)),
    *(({"ray": ray}, {}, Shard()) for ray in OUTSIDE),
    *(({"ray": ray}, TORCHRUN, Shard(3, 4, 1)) for ray in OUTSIDE),
    (JAX, {}, Shard(3, 4, 3)),
    (JAX, steps("3", "4"), Shard(3, 4, 1)),
]


@pytest.mark.parametrize(("frameworks", "variables", "shard"), HERE)
def test_the_shard_is_that_of_the_environment(frameworks, variables, shard, environment, loaded):
    loaded(**frameworks)
    environment(variables)
    assert Shard.here() == shard
    assert dali_storage.shard() == {"shard_id": shard.rank, "num_shards": shard.world}


@pytest.mark.parametrize(
    ("variables", "rank", "world", "local"),
    [
        *((each, *each) for each in (BY_HAND, MPIRUN, MPICH)),
        (SRUN, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ],
)
def test_half_an_environment_is_refused(variables, rank, world, local, environment, monkeypatch):
    environment(variables)
    with monkeypatch.context() as patch:
        patch.delenv(rank)
        for ask in (Shard.here, dali_storage.shard):
            with pytest.raises(ValueError, match=f"but not {rank}: set all of {rank}, {world}"):
                ask()
    with monkeypatch.context() as patch:
        patch.delenv(local)
        with pytest.raises(ValueError, match=f"but not {local}: set all of {rank}, {world}"):
            Shard.here()
        place = {"shard_id": int(variables[rank]), "num_shards": int(variables[world])}
        assert dali_storage.shard() == place  # a reader needs no GPU
    environment({world: ""})
    with pytest.raises(ValueError, match=f"environment: {world} must be an integer from 1 to "):
        Shard.here()


INTEGER = "environment: {} must be an integer "
LEFT = {"LOCAL_RANK": "0", "NODE_RANK": "0", "MASTER_PORT": "1"}
"""By Lightning, when fit() is over and the process group destroyed."""
SECOND_MACHINE = LIGHTNING | {"NODE_RANK": "1", "WORLD_SIZE": "4"}
INCOMPLETE_OR_WRONG = [
    ({"RANK": "0"}, "but not WORLD_SIZE and LOCAL_RANK: "),
    ({"WORLD_SIZE": "2"}, "but not RANK and LOCAL_RANK: "),
    ({"WORLD_SIZE": "2", "NODE_RANK": "0"}, "but not RANK and LOCAL_RANK: "),
    ({"LOCAL_RANK": "0"}, "but not RANK and WORLD_SIZE: "),
    ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE and OMPI_COMM_WORLD_LOCAL_RANK: "),
    ({"PMI_RANK": "0", "MPI_LOCALRANKID": "0"}, "but not PMI_SIZE: "),
    ({"PMIX_RANK": "1"}, r"PMIX_RANK, but no number of processes, .*: set RANK"),
    (LEFT, r"but not WORLD_SIZE: .*shard=Shard\(rank, world, "),
    (SECOND_MACHINE, r"NODE_RANK=1, but not RANK, .* in fit\(\) or later"),
    (TORCHRUN | {"RANK": "4"}, INTEGER.format("RANK") + "from 0 to 3, not 4"),
    (TORCHRUN | {"RANK": "-1"}, INTEGER.format("RANK") + "from 0 to 3, not '-1'"),
    (TORCHRUN | {"RANK": " 1"}, INTEGER.format("RANK") + "from 0 to 3, not ' 1'"),
    (TORCHRUN | {"WORLD_SIZE": "0"}, INTEGER.format("WORLD_SIZE") + "from 1 to 21.*, not 0"),
    (TORCHRUN | {"WORLD_SIZE": "four"}, INTEGER.format("WORLD_SIZE") + ".* not 'four'"),
    (TORCHRUN | {"LOCAL_RANK": "1_0"}, INTEGER.format("LOCAL_RANK") + "from 0 to 3, not '1_0'"),
    (TORCHRUN | {"LOCAL_RANK": "4"}, INTEGER.format("LOCAL_RANK") + "from 0 to 3, not 4"),
]


@pytest.mark.parametrize(("variables", "words"), INCOMPLETE_OR_WRONG, ids=str)
def test_an_environment_that_is_incomplete_or_wrong_is_refused(variables, words, environment):
    environment(variables)
    with pytest.raises(RuntimeError if variables is SECOND_MACHINE else ValueError, match=words):
        Shard.here()


def test_a_local_rank_beyond_the_group_is_refused(environment, loaded):
    loaded(**TORCH)
    environment({"LOCAL_RANK": "4"})
    with pytest.raises(ValueError, match="LOCAL_RANK must be an integer from 0 to 3, not 4"):
        Shard.here()


IN_AN_IMAGE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | MPIRUN
REMEDY = "correct the wrong one, or .*shard_id and num_shards of a reader"
GROUP = "torch's process group says rank 0 of"
TORCH_AND_RAY = {"torch": Distributed(0, 2), "ray": Ray(1, 2, 1)}
DISAGREE = [
    ({}, BY_HAND | SRUN, "RANK, WORLD_SIZE.* rank 3 of 4, but .*SLURM_PROCID, .* rank 5 of 8"),
    ({}, BY_HAND | steps("1", "4"), "4, .* rank 1 of 4"),
    ({}, IN_AN_IMAGE, f"rank 0 of 1, but .*OMPI_COMM_WORLD_SIZE.* rank 2 of 3: {REMEDY}"),
    ({}, BY_HAND | {"PMI_RANK": "3", "PMI_SIZE": "4"} | SRUN, "3 of 4, but .*SLURM_.* 5 of 8"),
    (TORCH_AND_RAY, {}, f"{GROUP} 2, but Ray Train says rank 1 of 2: correct"),
    ({"torch": Distributed(0, 1), "jax": Jax(0, 8)}, {}, f"{GROUP} 1, but JAX says rank 0 of 8: "),
    ({"jax": Jax(0, 8)}, TORCHRUN, "JAX says rank 0 of 8, the environment RANK=3"),
    ({"ray": Ray(3, 8, 1)}, TORCHRUN, "Ray Train says rank 3 of 8, the environment WORLD_SIZE=4"),
]


@pytest.mark.parametrize(("frameworks", "variables", "words"), DISAGREE)
def test_ranks_that_disagree_are_refused(frameworks, variables, words, environment, loaded):
    loaded(**frameworks)
    environment(variables)
    for ask in (Shard.here, dali_storage.shard):
        with pytest.raises(RuntimeError, match=words):
            ask()
    if not frameworks:
        environment({"TORCHELASTIC_RUN_ID": "none"})  # torchrun has been started by the other one
        assert dali_storage.shard()["num_shards"] == int(variables["WORLD_SIZE"])


@pytest.mark.usefixtures("group")
def test_a_group_comes_before_everything_else(loaded, environment):
    """Of torch; ranks that are not 0 are in tests/distributed."""
    environment({"LOCAL_RANK": "5", "WORLD_SIZE": "8"})  # without RANK
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    for group in (dist.group.WORLD, dist.new_group([0]), mesh["data"], mesh.get_group("tensor")):
        assert dali_storage.shard(group) == {"shard_id": 0, "num_shards": 1}
    loaded(torch=Distributed(5, 8))
    assert Shard.here(mesh["data"]) == Shard(0, 1, 5)


def test_the_rank_is_that_within_the_group_or_the_dimension_of_a_mesh():
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 2)
    mesh = {"ndim": 1, "get_local_rank": lambda: 1, "size": lambda: 2, "get_rank": lambda: 5}
    for each in (group, SimpleNamespace(**mesh)):
        assert dali_storage.shard(each) == {"shard_id": 1, "num_shards": 2}


@pytest.mark.usefixtures("group")
def test_what_is_no_group_is_refused():
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    with pytest.raises(ValueError, match=r"mesh of 2 dimensions \('data', 'tensor'\): .*mesh\["):
        dali_storage.shard(mesh)
    for group in (dist.GroupMember.NON_GROUP_MEMBER, "data", 0):
        with pytest.raises(ValueError, match=r"process group with this process, or a DeviceM"):
            Shard.here(group)


@pytest.mark.usefixtures("group")
def test_a_process_group_that_disagrees_with_the_environment_is_refused(environment):
    assert Shard.here() == Shard(0, 1, 0)
    for wrong, variables in (
        ("WORLD_SIZE=2", {"WORLD_SIZE": "2"}),
        ("RANK=1", {"WORLD_SIZE": "1", "RANK": "1"}),
    ):
        environment(variables)
        with pytest.raises(RuntimeError, match=f"says rank 0 of 1, the environment {wrong}: pass"):
            Shard.here()


def test_torch_is_not_imported_and_an_uninitialised_group_not_asked(environment, monkeypatch):
    assert torch.distributed.is_available()
    assert not dist.is_initialized()
    environment(TORCHRUN)
    assert Shard.here() == Shard(3, 4, 1)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of torch fails
    assert Shard.here() == Shard(3, 4, 1)
