"""A small data set of pictures, for the tests of the benchmark."""

from pathlib import Path

import numpy as np
from PIL import Image

IMAGES = 24


def make_pictures(root: Path) -> Path:
    """Make `IMAGES` JPEGs of different sizes, in three classes; return `root`."""
    generator = np.random.default_rng(1)
    for number in range(IMAGES):
        pixels = generator.integers(0, 256, (32 + number, 40, 3), np.uint8)
        path = root / f"c{number // 8}" / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


def make_photographs(root: Path, images: int) -> Path:
    """Make `images` JPEGs as smooth as photographs, in the layout of ImageNet; return `root`.

    They have different sizes, 230 to 330 pixels, colours and contrasts. Half of them are in `train`
    and half in `val`, in four classes each.
    """
    generator = np.random.default_rng(2)
    for number in range(images):
        coarse = generator.normal(
            generator.uniform(60, 200, 3), generator.uniform(9, 60), (9, 8, 3)
        )
        size = tuple(generator.integers(230, 330, 2).tolist())
        picture = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize(size)
        split, label = ("train", "val")[number % 2], number // 2 % 4
        folder = root / split / f"n0000000{label}"
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number:03d}.JPEG", quality=90)
    return root
