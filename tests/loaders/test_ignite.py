"""Ignite: trainer, evaluator and Checkpoint as they are, over a Loader; and a plain loop."""

import warnings
from pathlib import Path

import pytest
import torch

with warnings.catch_warnings():
    # What Ignite 0.5.5 imports of torch 2.13 uses functions that torch deprecates.
    warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", DeprecationWarning)
    from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.handlers import BasicTimeProfiler, Checkpoint, DiskSaver, ProgressBar
    from ignite.metrics import Loss


from dali_storage.loaders import Loader
from tests.kit.training import loss_of, network, same
from tests.kit.training_pipelines import TRAIN, VALIDATION, maker

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


@pytest.fixture
def validation(jpegs):
    with Loader(maker(jpegs, VALIDATION, train=False)) as loader:
        yield loader


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
    assert same(stopped.batches + resumed.batches, whole.batches)
    assert same(resumed.model, whole.model)
    assert not same(stopped.model, whole.model)


def test_every_evaluation_sees_all_samples(validation, jpegs):
    """Ignite never asks for the end of an epoch; `epoch_length=1` leaves after one batch."""
    seen = []
    run = Run(jpegs)
    evaluator = create_supervised_evaluator(run.model, metrics={"loss": Loss(loss_of)})
    evaluator.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: seen.extend(engine.state.output[1].tolist())
    )
    evaluations = []

    @run.trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        evaluator.run(validation, epoch_length=1)
        seen.clear()
        evaluator.run(validation)
        evaluations.append((list(seen), evaluator.state.metrics["loss"]))

    run.train()
    assert [samples for samples, _ in evaluations] == [list(range(VALIDATION))] * EPOCHS
    assert len({loss for _, loss in evaluations}) == EPOCHS


def test_the_bar_and_the_profiler_know_the_length_of_an_epoch(validation, capsys):
    engine = Engine(lambda engine, batch: len(batch[1]))
    ProgressBar().attach(engine, output_transform=lambda size: {"size": size})
    profiler = BasicTimeProfiler()
    profiler.attach(engine)
    engine.run(validation, max_epochs=2)
    assert "Epoch [2/2]: [10/11]" in capsys.readouterr().err  # the last step clears the bar
    assert profiler.get_results()["dataflow_stats"]["total"] > 0
