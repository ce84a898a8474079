"""Processes of torchrun that are killed and start again, also more of them, with `elastic`.

What counts of a step is its last attempt, as for the weights of a model.
"""

import json
import sys
from itertools import chain

import pytest

from tests.kit.elastic import EPOCHS, EVERY, KILLED, ORDERS, SAMPLES
from tests.kit.launch import torchrun

pytestmark = pytest.mark.long

FIRST, AGAIN, MORE = (2, 0), (2, 1), (3, 0)
"""How many processes, and which attempt; the last one begins with the checkpoint `RESIZED`."""
RESIZED = KILLED // EVERY * EVERY + EVERY  # the first one after the restart
STEPS = 14  # of an epoch with two processes

"""Step, epoch, samples of all processes until then, and the samples of one by what gave them."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What every process has seen, for each number of processes and attempt."""
    directory = tmp_path_factory.mktemp("elastic")
    (directory / "step-99").mkdir()  # a checkpoint that was being written
    resized = directory / f"step-{RESIZED}"
    commands = f"2 tests.kit.elastic {directory}", f"3 tests.kit.elastic {directory} {resized}"
    torchrun(directory, *commands)
    return {
        (world, attempt): [
            [tuple(json.loads(line)) for line in path.read_text().splitlines()]
            for path in sorted(directory.glob(f"log-{world}-{attempt}-*.jsonl"))
        ]
        for world, attempt in (FIRST, AGAIN, MORE)
    }


def given(attempts, name):
    """The samples of each epoch that were given by `name`, in the last attempt of each step."""
    epochs = [[] for _ in range(EPOCHS)]
    begin = [attempt[0][0][0] for attempt in attempts]
    for number, attempt in enumerate(attempts):
        end = min(begin[number + 1 :], default=sys.maxsize)
        for step, epoch, _, labels in chain(*attempt):
            epochs[epoch] += labels[name] if step < end else []
    return epochs


def test_the_second_process_was_killed_in_mid_epoch(runs):
    first, again, more = (runs[each] for each in (FIRST, AGAIN, MORE))
    assert [len(attempt) for attempt in (first, again, more)] == [2, 2, 3]
    assert {run[0][0] for run in first} == {0}
    assert {run[-1][0] for run in first} == {KILLED - 1}
    assert {run[0][:2] for run in again} == {(KILLED // EVERY * EVERY, 1)}
    assert {run[-1][0] for run in again} == {STEPS * EPOCHS - 1}
    assert {run[0][:2] for run in more} == {(RESIZED, 1)}
    assert (KILLED // EVERY * EVERY) % STEPS
    assert RESIZED % STEPS


def test_what_the_processes_share_was_restored(runs):
    assert {run[-1][2] for run in runs[AGAIN]} == {SAMPLES * EPOCHS * len(ORDERS) * 2}


@pytest.mark.parametrize("by", ["iterator", "loader"])
@pytest.mark.parametrize("order", ORDERS)
def test_every_sample_is_given_once_an_epoch(runs, order, by):
    for epoch in given([runs[FIRST], runs[AGAIN]], f"{by} {order}"):
        assert sorted(epoch) == list(range(SAMPLES))


@pytest.mark.parametrize("order", ORDERS)
def test_every_sample_is_given_once_an_epoch_also_if_three_processes_go_on(runs, order):
    for epoch in given([runs[FIRST], runs[AGAIN], runs[MORE]], f"loader {order}"):
        assert sorted(epoch) == list(range(SAMPLES))
