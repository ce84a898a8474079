"""Lightning: the resumption of an epoch, and two processes."""

import json
import subprocess
import sys
from contextlib import ExitStack

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.testing import assert_close

from tests.kit.lightning import Model, fit, loaders
from tests.kit.training_pipelines import VALIDATION

pytestmark = [
    pytest.mark.usefixtures("pipelines_end", "one_thread"),
    # Lightning 2.6.6 with the pytree of torch 2.13, and its advice to pass callbacks again.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path.:UserWarning"),
]

LONG = pytest.mark.long
STEPS = 12  # full batches of 8 in an epoch


@pytest.fixture
def data(jpegs):
    """Makes a loader for training and one for validation, which the test closes at its end."""
    with ExitStack() as stack:
        yield lambda: [stack.enter_context(each) for each in loaders(jpegs)]


@pytest.mark.parametrize(
    "steps", [pytest.param(STEPS, id="after an epoch", marks=LONG), pytest.param(17, id="in it")]
)
def test_a_run_that_stopped_continues_bit_for_bit(data, tmp_path, steps):
    whole = fit(Model(), *data())
    save = ModelCheckpoint(tmp_path, filename="stopped", every_n_train_steps=steps)
    stopped = fit(Model(), *data(), max_steps=steps, callbacks=[save])
    resumed = fit(Model(), *data(), checkpoint=tmp_path / "stopped.ckpt")

    assert (len(stopped.batches), len(whole.batches)) == (steps, 2 * STEPS)
    assert_close(stopped.batches + resumed.batches, whole.batches, rtol=0, atol=0)
    assert_close(resumed.network.state_dict(), whole.network.state_dict(), rtol=0, atol=0)
    assert not torch.equal(stopped.network[0].weight, whole.network[0].weight)
    rounds = [(name, len(labels)) for name, labels in resumed.rounds[-2:]]
    assert rounds == [("validate", 83), ("train", 8 * (2 * STEPS - steps))]


@LONG
def test_two_processes_share_every_epoch(jpegs, tmp_path):
    command = [sys.executable, "-m", "tests.kit.lightning", str(jpegs), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))

    names = [name for name, _ in one["rounds"]]
    assert names == ["sanity", *["validate", "train"] * 2]
    for (name, mine), (_, its) in zip(one["rounds"], other["rounds"], strict=True):
        if name == "validate":
            assert sorted(mine + its) == list(range(VALIDATION))
        else:  # in training, only full batches
            assert len(mine) == len(its) == {"sanity": 16, "train": 48}[name]
            assert name == "sanity" or len({*mine, *its}) == 96
    assert one["weights"] == other["weights"]
    # The first process starts the other one when it trains; both made their loaders before.
    assert one["shards"] == [[0, 1, 0], [0, 2, 0], [0, 2, 0]]
    assert other["shards"] == [[1, 2, 1]] * 3
