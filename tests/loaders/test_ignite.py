"""Ignite: its trainer and its Checkpoint over a Loader."""

import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

with warnings.catch_warnings():
    # What Ignite 0.5.5 imports of torch 2.13 uses functions that torch deprecates.
    warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
    from ignite.engine import Events, create_supervised_trainer
    from ignite.handlers import Checkpoint, DiskSaver

from dali_storage.loaders import Loader
from tests.kit.training import loss_of, network
from tests.kit.training_pipelines import TRAIN, maker

pytestmark = pytest.mark.usefixtures("pipelines_end", "one_thread")

EPOCHS, STEPS = 2, 12


class Run:
    """A trainer, what it trains and with what; it keeps its batches."""

    def __init__(self, jpegs: Path) -> None:
        self.model = network()
        optimizer = torch.optim.SGD(self.model.parameters(), 1e-2)
        self.loader = Loader(maker(jpegs, TRAIN, train=True), last_batch="drop")
        self.trainer = create_supervised_trainer(
            self.model, optimizer, loss_of, output_transform=lambda x, y, *_: (x, y)
        )
        self.batches = []
        self.trainer.add_event_handler(
            Events.ITERATION_COMPLETED, lambda engine: self.batches.append(engine.state.output)
        )
        self.state = {
            "model": self.model,
            "optimizer": optimizer,
            "trainer": self.trainer,
            "loader": self.loader,
        }

    def train(self):
        with self.loader:
            self.trainer.run(self.loader, max_epochs=EPOCHS)
        return self


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(STEPS, id="after an epoch", marks=pytest.mark.long),
        pytest.param(17, id="in an epoch"),
    ],
)
def test_a_run_that_stopped_continues_bit_for_bit(jpegs, tmp_path, steps):
    whole = Run(jpegs).train()

    stopped = Run(jpegs)
    save = Checkpoint(stopped.state, DiskSaver(tmp_path, require_empty=False), filename_pattern="x")
    last = Events.ITERATION_COMPLETED(once=steps)
    stopped.trainer.add_event_handler(last, save)
    stopped.trainer.add_event_handler(last, lambda engine: engine.terminate())
    stopped.train()

    resumed = Run(jpegs)
    Checkpoint.load_objects(resumed.state, torch.load(tmp_path / "x", weights_only=True))
    resumed.train()

    assert (len(stopped.batches), len(whole.batches)) == (steps, EPOCHS * STEPS)
    assert_close(stopped.batches + resumed.batches, whole.batches, rtol=0, atol=0)
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert not torch.equal(stopped.model[0].weight, whole.model[0].weight)
