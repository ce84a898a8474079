"""Which shard a process takes: process group, launchers' environments, neither."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dali_storage.loaders import Shard

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
LIGHTNING = {"MASTER_ADDR": "127.0.0.1", "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
# A batch script is itself process 0 of its job; srun adds the numbers of the step.
SLURM_JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
SRUN = SLURM_JOB | {"SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
SALLOC_SHELL = SLURM_JOB | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "4294967290"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*TORCHRUN, *LIGHTNING, *MPIRUN, *SRUN, *SALLOC_SHELL]:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone; its rank and size are 0 and 1."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_shards_are_values() -> None:
    assert Shard() == Shard(rank=0, world=1, local_rank=0)
    assert hash(Shard(1, 2, 1)) == hash(Shard(1, 2, 1))
    with pytest.raises(AttributeError):
        Shard().rank = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 0), "world must be an integer from 1"),
        ((2, 2), "rank must be an integer from 0 to 1, not 2"),
        ((-1, 2), "rank must be an integer from 0 to 1, not -1"),
        ((0, 2, 2), "local_rank must be an integer from 0 to 1, not 2"),
        (("0", 2), "rank must be an integer from 0 to 1, not '0'"),
        ((True, 2), "rank must be an integer from 0 to 1, not True"),
        ((0, 2.0), "world must be an integer from 1 to 2147483647, not 2.0"),
    ],
)
def test_wrong_shards_are_refused(arguments: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Shard(*arguments)


@pytest.mark.parametrize(
    ("variables", "shard"),
    [
        ({}, Shard(0, 1, 0)),
        (TORCHRUN, Shard(3, 4, 1)),
        (LIGHTNING, Shard(1, 2, 1)),
        (LIGHTNING | {"LOCAL_RANK": "0"}, Shard(0, 2, 0)),
        (MPIRUN, Shard(2, 3, 0)),
        (SRUN, Shard(5, 8, 1)),
        (SLURM_JOB, Shard(0, 1, 0)),
        (SALLOC_SHELL, Shard(0, 1, 0)),
        (SRUN | MPIRUN, Shard(2, 3, 0)),
        (SRUN | TORCHRUN, Shard(3, 4, 1)),
        (SRUN | LIGHTNING, Shard(1, 2, 1)),
        ({"NODE_RANK": "1"}, Shard(0, 1, 0)),
    ],
)
def test_environments(
    variables: dict[str, str], shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Shard.here() == shard


@pytest.mark.parametrize("variables", [TORCHRUN, MPIRUN, SRUN])
def test_half_an_environment_is_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, world, local = (
        next(name for name in variables if name.endswith(end))
        for end in (("RANK", "PROCID"), ("WORLD_SIZE", "NUM_TASKS"), ("LOCAL_RANK", "LOCALID"))
    )
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for missing in (rank, local):
        with monkeypatch.context() as patch:
            patch.delenv(missing)
            with pytest.raises(ValueError, match=rf"but not {missing}: set all of {rank}, {world}"):
                Shard.here()
    monkeypatch.setenv(world, "")
    with pytest.raises(ValueError, match=f"environment: {world} must be an integer from 1 to "):
        Shard.here()


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE and LOCAL_RANK"),
        ({"WORLD_SIZE": "2"}, "RANK and LOCAL_RANK"),
        ({"WORLD_SIZE": "2", "NODE_RANK": "0"}, "RANK and LOCAL_RANK"),
        ({"LOCAL_RANK": "0"}, "RANK and WORLD_SIZE"),
        # What Lightning leaves behind when fit() is over, and the process group destroyed.
        ({"LOCAL_RANK": "0", "NODE_RANK": "0", "MASTER_PORT": "1"}, "WORLD_SIZE"),
    ],
)
def test_a_third_of_an_environment_is_refused(
    variables: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"but not {missing}: .*shard=Shard\(rank, world, "):
        Shard.here()


def test_the_second_machine_of_lightning_knows_no_rank_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (LIGHTNING | {"NODE_RANK": "1", "WORLD_SIZE": "4"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=r"NODE_RANK=1, but not RANK, .* in fit\(\) or later"):
        Shard.here()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RANK", "4", "RANK must be an integer from 0 to 3, not 4"),
        ("RANK", "-1", "RANK must be an integer from 0 to 3, not '-1'"),
        ("RANK", " 1", "RANK must be an integer from 0 to 3, not ' 1'"),
        ("WORLD_SIZE", "0", "WORLD_SIZE must be an integer from 1 to 2147483647, not 0"),
        ("WORLD_SIZE", "four", "WORLD_SIZE must be an integer .* not 'four'"),
        ("LOCAL_RANK", "1_0", "LOCAL_RANK must be an integer from 0 to 3, not '1_0'"),
        ("LOCAL_RANK", "4", "LOCAL_RANK must be an integer from 0 to 3, not 4"),
    ],
)
def test_wrong_values_are_refused_by_name(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for known, good in (TORCHRUN | {name: value}).items():
        monkeypatch.setenv(known, good)
    with pytest.raises(ValueError, match=f"environment: {words}"):
        Shard.here()


class Distributed:
    """torch.distributed, with a process group of any size."""

    def __init__(self, rank: int, world: int) -> None:
        self.get_rank, self.get_world_size = lambda: rank, lambda: world
        self.is_available = self.is_initialized = lambda: True


@pytest.mark.parametrize(
    ("variables", "local_rank"),
    [
        ({}, 3),
        (TORCHRUN, 1),
        ({"LOCAL_RANK": "1", "NODE_RANK": "1"}, 1),
        ({"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"}, 1),
        (SRUN | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, 1),
        # srun has started one process a machine, and that the others.
        (SRUN | {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 3),
        (SLURM_JOB, 3),
    ],
)
def test_the_group_knows_the_rank_and_the_launcher_the_local_one(
    variables: dict[str, str], local_rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", Distributed(3, 4))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Shard.here() == Shard(3, 4, local_rank)


@pytest.mark.usefixtures("group")
def test_a_process_group_that_disagrees_with_the_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Shard.here() == Shard(0, 1, 0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"says rank 0 of 1, the environment WORLD_SIZE=2: pass"):
        Shard.here()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(RuntimeError, match=r"says rank 0 of 1, the environment RANK=1: pass"):
        Shard.here()


def test_torch_is_not_imported_and_an_uninitialised_group_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert torch.distributed.is_available()
    assert not dist.is_initialized()
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert Shard.here() == Shard(3, 4, 1)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of torch fails
    assert Shard.here() == Shard(3, 4, 1)
