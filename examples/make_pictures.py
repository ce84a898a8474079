"""Makes a small set of pictures for the examples: DIR/train and DIR/val, four classes each.

python examples/make_pictures.py DIR                  # of noise
python examples/make_pictures.py DIR --photographs    # crops of photographs of scikit-image
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

COLOURS = {"blue": (0, 0, 90), "green": (0, 90, 0), "grey": (45, 45, 45), "red": (90, 0, 0)}

parser = argparse.ArgumentParser(description="Make a small set of pictures.")
parser.add_argument("directory", type=Path, metavar="DIR")
parser.add_argument("--images", type=int, default=400, help="for training (%(default)s)")
parser.add_argument("--photographs", action="store_true", help="needs: pip install scikit-image")
arguments = parser.parse_args()

photographs = dict.fromkeys(COLOURS)
if arguments.photographs:  # by NASA, SpaceX (public domain), S. van der Walt, R. Michetti (CC0)
    from skimage import data

    four = data.astronaut(), data.chelsea(), data.coffee(), data.rocket()
    photographs = dict(zip(("astronaut", "cat", "coffee", "rocket"), four, strict=True))

random = np.random.default_rng(0)
for part, images in ("train", arguments.images), ("val", arguments.images // 4):
    for number in range(images):
        name, whole = list(photographs.items())[number % len(photographs)]
        height, width = random.integers(80, 160, 2)
        if whole is None:
            pixels = random.integers(0, 120, (height // 8, width // 8, 3)) + COLOURS[name]
            picture = Image.fromarray(pixels.astype(np.uint8)).resize((width, height))
        else:
            height, width = height + 100, width + 100
            top, left = random.integers((whole.shape[0] - height, whole.shape[1] - width))
            picture = Image.fromarray(whole[top : top + height, left : left + width])
        folder = arguments.directory / part / name
        folder.mkdir(parents=True, exist_ok=True)
        picture.save(folder / f"{number:05d}.jpg")
