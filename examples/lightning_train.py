"""Training with Lightning: a bar with the wait for data, several processes, checkpoints.

python examples/lightning_train.py --data DIR --devices 2 --checkpoints checkpoints
python examples/lightning_train.py --data DIR --resume checkpoints/last.ckpt
"""

import argparse
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from make_pictures import fresh, pictures  # type: ignore[import-not-found]
from torch import nn

from dali_storage.loaders import image_folder


class Classifier(lightning.LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        features = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.network = nn.Sequential(features, nn.Flatten(), nn.Linear(64 * 4 * 4, classes))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        wait = self.trainer.train_dataloader.stats.wait_share
        self.log_dict({"loss": loss, "wait": wait}, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        accuracy = (self.network(images).argmax(1) == labels).float().mean()
        self.log("accuracy", accuracy, prog_bar=True, sync_dist=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/ and val/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--devices", type=int, default=1, help="GPUs, or processes on the CPU")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--max-steps", type=int, default=-1, metavar="N", help="stop after N batches")
parser.add_argument("--checkpoints", metavar="DIR", help="default: a temporary one")
parser.add_argument("--resume", metavar="FILE", help="go on from this checkpoint")
args = parser.parse_args()
size = 30 // args.devices  # a step has 30 pictures, also after a resume on other processes
train = image_folder(f"{args.data}/train", train=True, batch_size=size, device=args.device)
val = image_folder(f"{args.data}/val", train=False, batch_size=size, device=args.device)
save = ModelCheckpoint(args.checkpoints or fresh(), save_last=True, every_n_train_steps=10)
trainer = lightning.Trainer(
    accelerator=args.device,
    devices=args.devices,
    max_epochs=args.epochs,
    max_steps=args.max_steps,
    logger=False,
    callbacks=[save],
)
trainer.fit(Classifier(len(train.classes)), train, val, ckpt_path=args.resume, weights_only=True)
print(train.stats)
