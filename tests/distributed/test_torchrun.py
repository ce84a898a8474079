"""What two processes of torchrun know of their place; `ranks` is what they run."""

import json

import pytest

from tests.kit.launch import torchrun
from tests.kit.ranks import SAMPLES


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What the ranks have written."""
    directory = tmp_path_factory.mktemp("torchrun")
    torchrun(2, "tests.kit.ranks", directory)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]


def test_the_shard_is_that_of_the_launcher_and_then_of_the_group(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["before"] == seen["shard"] == [rank, 2, rank]


def test_a_dimension_of_a_mesh_says_who_reads_the_same(ranks):
    for rank, seen in enumerate(ranks):
        assert seen["data"] == [{"shard_id": rank, "num_shards": 2}] * 2
        assert seen["tensor"] == [{"shard_id": 0, "num_shards": 1}] * 2


def test_a_loader_made_before_the_group_reads_its_shard(ranks):
    assert ranks[0]["labels"] + ranks[1]["labels"] == list(range(SAMPLES))
    assert all(seen["labels"] for seen in ranks)


def test_states_that_differ_between_ranks_are_refused_on_all(ranks):
    for seen in ranks:
        assert seen["differs"].startswith(
            "the states of the ranks differ: changes is [[4, [0, 1]]] on rank 0, but "
            "[[4, [1, 1]]] on rank 1; give all ranks the same arguments"
        )
