"""Training on images and masks: two files a sample, with one crop and one flip for both.

python examples/segmentation.py --data DIR
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvidia.dali import fn, pipeline_def, types
from PIL import Image
from torch import nn

from dali_storage import readers
from dali_storage.loaders import Loader

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", metavar="DIR", help="is filled; default: a temporary one")
here = "gpu" if torch.cuda.is_available() else "cpu"
parser.add_argument("--device", choices=["cpu", "gpu"], default=here)
args = parser.parse_args()
root = Path(args.data or tempfile.mkdtemp())
decoder, device = ("cpu", "cpu") if args.device == "cpu" else ("mixed", "cuda")
# Bright discs on a dark ground; a mask has 1 where the disc is.
generator, (y, x) = np.random.default_rng(1), np.mgrid[:96, :96]
for folder in ("images", "masks"):
    (root / folder).mkdir(parents=True, exist_ok=True)
for number in range(64):
    (at_x, at_y), radius = generator.integers(20, 76, 2), generator.integers(10, 30)
    mask = ((x - at_x) ** 2 + (y - at_y) ** 2 < radius**2).astype(np.uint8)
    image = generator.integers(0, 99, (96, 96, 3), np.uint8) + 130 * mask[..., None]
    Image.fromarray(image).save(root / f"images/{number:02}.jpg")
    Image.fromarray(mask).save(root / f"masks/{number:02}.png")


@pipeline_def(batch_size=16, num_threads=2, device_id=None if device == "cpu" else 0)
def pipeline(shard_id: int, num_shards: int) -> tuple[Any, Any]:
    options: dict[str, Any] = {"shard_id": shard_id, "num_shards": num_shards, "name": "Reader"}
    options |= {"file_root": root, "shuffle_after_epoch": True, "pad_last_batch": True}
    images, masks = readers.columns(["images/{}.jpg", "masks/{}.png"], **options)
    images = fn.decoders.image(images, device=decoder)
    masks = fn.decoders.image(masks, device=decoder, output_type=types.GRAY)
    at_x, at_y = (fn.random.uniform(range=[0, 1], seed=seed) for seed in (1, 2))
    both = {"crop": (64, 64), "crop_pos_x": at_x, "crop_pos_y": at_y}
    both |= {"mirror": fn.random.coin_flip(seed=3), "output_layout": "CHW"}
    images = fn.crop_mirror_normalize(images, **both, mean=[128.0] * 3, std=[64.0] * 3)
    return images, fn.crop_mirror_normalize(masks, **both)


model = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 1, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), 0.02)
with Loader(lambda **given: pipeline(**given, enable_checkpointing=True)) as loader:
    for epoch in range(3):
        for images, masks in loader:
            found = model(images)
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(found, masks).backward()
            optimizer.step()
        print(f"epoch {epoch}: {((found > 0) == masks.bool()).float().mean():.3f} of the pixels")
