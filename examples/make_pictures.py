"""Makes a small set of pictures for the examples: DIR/train and DIR/val, four classes each.

python examples/make_pictures.py DIR
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (0, 0, 90), "green": (0, 90, 0), "grey": (45, 45, 45), "red": (90, 0, 0)}

parser = argparse.ArgumentParser(description="Make a small set of pictures.")
parser.add_argument("directory", type=Path, metavar="DIR")
parser.add_argument("--images", type=int, default=400, help="for training (%(default)s)")
arguments = parser.parse_args()

random = np.random.default_rng(0)
for part, images in ("train", arguments.images), ("val", arguments.images // 4):
    for number in range(images):
        name, colour = list(COLOURS.items())[number % len(COLOURS)]
        height, width = random.integers(80, 160, 2)
        pixels = random.integers(0, 120, (height // 8, width // 8, 3)) + colour
        picture = Image.fromarray(pixels.astype(np.uint8)).resize((width, height))
        folder = arguments.directory / part / name
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number:05d}.jpg")
