"""Training in DALI's dynamic mode: operators are functions, called on one batch at a time.

python examples/dynamic_train.py --data DIR
"""

import argparse
from collections.abc import Iterator
from itertools import islice

import nvidia.dali.experimental.dynamic as ndd
import torch
from make_pictures import pictures  # type: ignore[import-not-found]
from torch import nn

from dali_storage.dynamic import readers

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=pictures, default="", metavar="DIR", help="has train/")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
parser.add_argument("--classes", type=int, default=4, help="directories in train/")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--max-steps", type=int, metavar="N", help="stop after N batches")
args = parser.parse_args()


def epochs(reader: readers.File) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of normalised pictures, float32 NCHW, and of their labels."""
    for _ in range(args.epochs):
        for encoded, labels in reader.next_epoch(batch_size=32):
            images = ndd.decoders.image(encoded, device=args.device)
            images = ndd.random_resized_crop(images, size=(224, 224), antialias=True)
            images = ndd.crop_mirror_normalize(
                images,
                mirror=ndd.random.coin_flip(batch_size=images.batch_size),
                mean=[0.485 * 255, 0.456 * 255, 0.406 * 255],
                std=[0.229 * 255, 0.224 * 255, 0.225 * 255],
                dtype=ndd.float32,
                output_layout="CHW",
            )
            yield images.torch(), labels.torch().squeeze(1).long()


device = "cuda" if args.device == "gpu" else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 64, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
model.append(nn.Linear(64 * 4 * 4, args.classes)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
with readers.File(file_root=f"{args.data}/train", shuffle_after_epoch=True) as reader:
    for step, (images, labels) in enumerate(islice(epochs(reader), args.max_steps), 1):
        loss = nn.functional.cross_entropy(model(images), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
