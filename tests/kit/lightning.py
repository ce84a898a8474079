"""A training by Lightning; and one by its ddp, as a user's script, which test_lightning.py runs.

    python -m tests.kit.lightning JPEGS OUT

Writes OUT/RANK.json: the shard before, in and after the training, the rounds and the weights.
"""

import json
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import lightning
import torch

from dali_storage.loaders import Loader, Shard
from tests.kit.training import loss_of, network
from tests.kit.training_pipelines import TRAIN, VALIDATION, maker


class Model(lightning.LightningModule):
    """Keeps the batches for training, and the labels of every round."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.batches: list[Any] = []
        self.rounds: list[tuple[str, list[int]]] = []
        self.labels: dict[str, list[int]] = {"train": [], "validate": []}

    def on_train_start(self) -> None:
        self.shard = astuple(Shard.here())

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        self.batches.append(batch)
        self.labels["train"] += labels.tolist()
        return loss_of(self.network(images), labels)

    def on_train_epoch_end(self) -> None:
        self.end_round("train")

    def validation_step(self, batch: Any, index: int) -> None:
        self.labels["validate"] += batch[1].tolist()

    def on_validation_epoch_end(self) -> None:
        self.end_round("validate")

    def end_round(self, name: str) -> None:
        called = "sanity" if self.trainer.sanity_checking else name
        self.rounds.append((called, self.labels[name]))
        self.labels[name] = []

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-2)


def loaders(jpegs: Path) -> tuple[Loader, Loader]:
    """For training and for validation."""
    train = Loader(maker(jpegs, TRAIN, train=True), last_batch="drop")
    return train, Loader(maker(jpegs, VALIDATION, train=False))


def fit(model: Model, *data: Loader, checkpoint: Path | None = None, **options: Any) -> Model:
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"max_epochs": 2, "enable_checkpointing": "callbacks" in options} | options,
    )
    trainer.fit(model, *data, ckpt_path=checkpoint, weights_only=True)
    return model


def main(jpegs: Path, out: Path) -> None:
    before, (train, validation) = Shard.here(), loaders(jpegs)
    with train, validation:
        model = fit(Model(), train, validation, devices=2, strategy="ddp")
    result = {
        "shards": [astuple(before), model.shard, astuple(Shard.here())],
        "rounds": model.rounds,
        "weights": [parameter.sum().item() for parameter in model.parameters()],
    }
    (out / f"{model.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
