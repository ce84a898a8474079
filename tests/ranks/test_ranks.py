"""Loaders in two processes of torchrun; `ranks` is what these run."""

import json
from itertools import chain

import pytest

from tests.kit.launch import torchrun
from tests.kit.loading import given, stream
from tests.kit.ranks import BATCH, ORDERS, POLICIES, SAMPLES, make

EVERYTHING = list(range(SAMPLES))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the ranks have written."""
    directory = tmp_path_factory.mktemp("torchrun")
    torchrun(directory, f"2 tests.kit.ranks {directory}")
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


def labels(batches):
    return [values[0] for values, _ in batches]


def test_the_shard_is_that_of_the_launcher_and_then_of_the_group(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["before"] == seen["shard"] == [rank, 2, rank]


def test_a_dimension_of_a_mesh_says_who_reads_the_same(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["data"] == [{"shard_id": rank, "num_shards": 2}] * 2
        assert seen["tensor"] == [{"shard_id": 0, "num_shards": 1}] * 2


def test_a_loader_made_before_the_group_reads_its_shard(ranks):
    assert sorted(chain(*ranks[0]["late"], *ranks[1]["late"])) == EVERYTHING


def test_a_loader_used_before_the_rank_is_known_is_refused_afterwards(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["alone"] == -(-SAMPLES // BATCH)
        assert f"first used in rank 0 of 1, and the process is rank {rank} of 2" in seen["early"]


def test_a_group_that_disagrees_with_the_environment_is_refused(ranks):
    for rank, seen in enumerate(ranks):
        assert f"says rank {rank} of 2, the environment WORLD_SIZE=3" in seen["disagree"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("order", ORDERS)
def test_the_ranks_share_the_data_set(ranks, order, policy):
    """With drop and pad, all ranks met at every batch."""
    runs = [seen[f"{order} {policy}"] for seen in ranks]
    for epoch in range(2):
        of_ranks = [labels(run[epoch]) for run in runs]
        for rank, found in enumerate(of_ranks):
            real = stream(make(order), rank, 2)(epoch)
            assert found == given(make(order), real, epoch, policy, rank, 2)
        together = list(chain(*of_ranks[0], *of_ranks[1]))
        real_ones = sum(valid for run in runs for _, valid in run[epoch])
        dropped = SAMPLES // 2 // BATCH * BATCH * 2
        assert real_ones == len(set(together)) == (dropped if policy == "drop" else SAMPLES)
        assert policy == "pad" or len(together) == real_ones
        if policy != "partial":
            assert len(of_ranks[0]) == len(of_ranks[1])
            assert {len(batch) for batch in chain(*of_ranks)} == {BATCH}


def test_every_rank_goes_on_from_its_state(ranks):
    for seen in ranks:
        assert seen["restored"] == seen["rest"]  # samples and random numbers
        assert seen["warnings"] == []
    assert ranks[0]["rest"] != ranks[1]["rest"]
    together = chain(*(seen["taken"] for seen in ranks), *(seen["rest"][:3] for seen in ranks))
    assert sorted(chain(*(batch[0] for batch in together))) == EVERYTHING


def test_a_rank_takes_the_place_but_not_the_random_numbers_of_rank_0(ranks):
    assert ranks[0]["of rank 0"] == ranks[0]["rest"]
    assert ranks[0]["warnings of rank 0"] == []
    (warning,) = ranks[1]["warnings of rank 0"]
    assert "the state is of rank 0, and this is rank 1" in warning
    for batch, expected in zip(ranks[1]["of rank 0"], ranks[1]["rest"], strict=True):
        assert batch[0] == expected[0]
        assert batch[1] != expected[1]
