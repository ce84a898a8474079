"""Lightning: how much of the data every round of it has, and the resumption of an epoch."""

import json
import subprocess
import sys
from contextlib import ExitStack

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dali_storage.loaders import Loader
from tests.kit.training import loss_of, network, same
from tests.kit.training_pipelines import TRAIN, VALIDATION, maker

pytestmark = [
    pytest.mark.usefixtures("pipelines_end", "one_thread"),
    # Lightning 2.6.6 with the pytree of torch 2.13, and its advice to pass callbacks again.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Be aware that when using .ckpt_path.:UserWarning"),
]

LONG = pytest.mark.long
STEPS = 12  # full batches of 8 in an epoch for training; for validation there are 11


class Model(lightning.LightningModule):
    """Keeps the batches for training, and the number of samples in every round."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.batches = []
        self.rounds = []
        self.samples = {"train": 0, "validate": 0, "sanity": 0}

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return (batch[0]["data"], batch[0]["label"]) if isinstance(batch[0], dict) else batch

    def training_step(self, batch, index):
        images, labels = batch
        self.batches.append((images, labels))
        self.samples["train"] += len(labels)
        return loss_of(self.network(images), labels)

    def on_train_epoch_end(self):
        self.end_round("train")

    def validation_step(self, batch, index):
        self.samples["validate"] += len(batch[1])

    def on_validation_epoch_end(self):
        self.end_round("validate")

    def end_round(self, name):
        called = "sanity" if self.trainer.sanity_checking else name
        self.rounds.append((called, self.samples[name]))
        self.samples[name] = 0

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 1e-2)


def fit(model, *data, checkpoint=None, **options):
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "enable_checkpointing": "callbacks" in options} | options,
    )
    trainer.fit(model, *data, ckpt_path=checkpoint, weights_only=True)
    return model


@pytest.fixture
def loaders(jpegs):
    """Makes a loader for training and one for validation, which the test closes at its end."""
    with ExitStack() as stack:

        def make():
            train = Loader(maker(jpegs, TRAIN, train=True), last_batch="drop")
            validation = Loader(maker(jpegs, VALIDATION, train=False))
            return stack.enter_context(train), stack.enter_context(validation)

        yield make


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"limit_train_batches": 5}, [("validate", 83), ("train", 40)]),
        pytest.param({}, [("validate", 83), ("train", 96)], marks=LONG),
        pytest.param({"limit_val_batches": 1}, [("validate", 8), ("train", 96)], marks=LONG),
        ({"val_check_interval": 4}, [("validate", 83)] * 3 + [("train", 96)]),
        pytest.param({"overfit_batches": 2}, [("validate", 16), ("train", 16)], marks=LONG),
    ],
    ids=str,
)
def test_every_epoch_is_a_whole_one_or_as_long_as_lightning_limits_it(loaders, options, rounds):
    model = fit(Model(), *loaders(), **options)
    sanity = ("sanity", 8 if "limit_val_batches" in options else 16)
    assert model.rounds == [sanity] + rounds * 2


@LONG
def test_the_iterator_of_dali_goes_on_within_an_epoch_that_lightning_has_left(jpegs):
    """This is why there is a Loader."""

    def iterators():
        for make, policy in [
            (maker(jpegs, TRAIN, train=True), LastBatchPolicy.DROP),
            (maker(jpegs, VALIDATION, train=False), LastBatchPolicy.PARTIAL),
        ]:
            yield DALIGenericIterator(
                make(),
                ["data", "label"],
                reader_name="Reader",
                last_batch_policy=policy,
                auto_reset=True,
            )

    assert fit(Model(), *iterators()).rounds[:2] == [("sanity", 16), ("validate", 67)]
    limited = fit(Model(), *iterators(), limit_train_batches=5, max_epochs=3).rounds
    assert limited[3:] == [("validate", 83), ("train", 40), ("train", 16)]


@pytest.mark.parametrize(
    "steps", [pytest.param(STEPS, id="after an epoch", marks=LONG), pytest.param(17, id="in it")]
)
def test_a_run_that_stopped_continues_bit_for_bit(loaders, tmp_path, steps):
    whole = fit(Model(), *loaders())
    save = ModelCheckpoint(tmp_path, filename="stopped", every_n_train_steps=steps)
    stopped = fit(Model(), *loaders(), max_steps=steps, callbacks=[save])
    resumed = fit(Model(), *loaders(), checkpoint=tmp_path / "stopped.ckpt")

    assert (len(stopped.batches), len(whole.batches)) == (steps, 2 * STEPS)
    assert same(stopped.batches + resumed.batches, whole.batches)
    assert same(resumed.network, whole.network)
    assert not same(stopped.network, whole.network)
    assert resumed.rounds[-2:] == [("validate", 83), ("train", 8 * (2 * STEPS - steps))]


@LONG
def test_two_processes_share_every_epoch(jpegs, tmp_path):
    command = [sys.executable, "-m", "tests.kit.lightning_ddp", str(jpegs), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))

    trained = [sorted(a + b) for a, b in zip(one["train"], other["train"], strict=True)]
    assert [len(samples) for samples in one["train"]] == [48, 48]  # only full batches
    assert [len(set(samples)) for samples in trained] == [96, 96]
    sanity, *validated = zip(one["validate"], other["validate"], strict=True)
    assert [len(samples) for samples in sanity] == [16, 16]
    assert [sorted(a + b) for a, b in validated] == [list(range(VALIDATION))] * 2
    assert one["weights"] == other["weights"]
    # The first process starts the other one when it trains; both made their loaders before.
    assert one["shards"] == [[0, 1, 0], [0, 2, 0], [0, 2, 0]]
    assert other["shards"] == [[1, 2, 1]] * 3
