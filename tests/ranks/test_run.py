"""The numbers that tell a run from others, in the environments of launchers."""

import pytest
from torch import distributed

from dali_storage.ranks.run import before, different, run_of

TORCH, SLURM, MPI = "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "PMIX_NAMESPACE"


@pytest.fixture(autouse=True)
def nothing(monkeypatch):
    for name in (TORCH, SLURM, MPI, "SLURM_ARRAY_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "numbers"),
    [
        ({}, {}),
        ({TORCH: "none"}, {}),  # without --standalone and --rdzv-id
        ({TORCH: "a1", MPI: "b2"}, {TORCH: "a1", MPI: "b2"}),
        ({SLURM: "7"}, {SLURM: "7.0"}),
        ({SLURM: "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, {SLURM: "7.2"}),
        ({SLURM: "7", "DALI_STORAGE_RUN": "mine"}, {"DALI_STORAGE_RUN": "mine"}),
    ],
)
def test_launchers(environment, numbers, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run_of(2) == numbers
    assert run_of(1) == (numbers or run_of(1))


def test_a_process_group_shares_a_number():
    found = []
    for _ in range(2):
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            found += [run_of(2), run_of(2)]
        finally:
            distributed.destroy_process_group()
    assert found[0] == found[1] != found[2] == found[3]
    assert run_of(2) == {}


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ({}, {SLURM: "7"}, ""),
        ({SLURM: "7"}, {SLURM: "8"}, "SLURM_JOB_ID is '7' and '8'"),
        ({TORCH: "a", SLURM: "7"}, {TORCH: "a", SLURM: "8"}, ""),  # a run in two jobs
        ({TORCH: "a"}, {SLURM: "8"}, ""),
        (before({TORCH: "a"}), {TORCH: "b"} | before({TORCH: "a"}), ""),  # no group any more
        (before({TORCH: "a"}), before(before({TORCH: "c"})), "resumed TORCHELASTIC_RUN_ID is"),
    ],
)
def test_the_best_number_counts(one, other, differs):
    assert different(one, other).startswith(differs)
    assert bool(different(other, one)) == bool(differs)
