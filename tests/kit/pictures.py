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
