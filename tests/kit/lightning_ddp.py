"""A training by Lightning's ddp, as a user's script; run by test_lightning.py.

    python -m tests.kit.lightning_ddp JPEGS OUT

Writes OUT/RANK.json: the shard before, in and after the training, and the samples of each round of
training and of validation.
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
    def __init__(self) -> None:
        super().__init__()
        self.network = network()
        self.rounds: dict[str, list[list[int]]] = {"train": [], "validate": []}
        self.shards = [astuple(Shard.here())]

    def on_train_start(self) -> None:
        self.shards.append(astuple(Shard.here()))

    def on_train_epoch_start(self) -> None:
        self.rounds["train"].append([])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        self.rounds["train"][-1] += labels.tolist()
        return loss_of(self.network(images), labels)

    def on_validation_epoch_start(self) -> None:
        self.rounds["validate"].append([])

    def validation_step(self, batch: Any, index: int) -> None:
        self.rounds["validate"][-1] += batch[1].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-2)


def main(jpegs: Path, out: Path) -> None:
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with (
        Loader(maker(jpegs, TRAIN, train=True), last_batch="drop") as train,
        Loader(maker(jpegs, VALIDATION, train=False)) as validation,
    ):
        trainer.fit(model, train, validation)
    model.shards.append(astuple(Shard.here()))
    weights = [parameter.sum().item() for parameter in model.parameters()]
    result = model.rounds | {"weights": weights, "shards": model.shards}
    (out / f"{trainer.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
