"""Makes a small set of pictures for the examples: DIR/train and DIR/val, four classes each.

python examples/make_pictures.py DIR                  # of noise
python examples/make_pictures.py DIR --photographs    # crops of photographs of scikit-image
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COLOURS = {"blue": (0, 0, 90), "green": (0, 90, 0), "grey": (45, 45, 45), "red": (90, 0, 0)}
SYNSETS = {f"n0000000{number}": colour for number, colour in enumerate(COLOURS.values())}
TEMPORARY = Path(tempfile.gettempdir(), f"dali_storage-examples-{os.getuid()}")


def make(
    directory: Path, images: int = 400, *, photographs: bool = False, colours: Any = COLOURS
) -> None:
    wholes = dict.fromkeys(colours)
    if photographs:  # by NASA, SpaceX (public domain), S. van der Walt, R. Michetti (CC0)
        from skimage import data

        four = data.astronaut(), data.chelsea(), data.coffee(), data.rocket()
        wholes = dict(zip(("astronaut", "cat", "coffee", "rocket"), four, strict=True))
    random = np.random.default_rng(0)
    for part, count in ("train", images), ("val", images // 4):
        for number in range(count):
            name, whole = list(wholes.items())[number % len(wholes)]
            height, width = random.integers(80, 160, 2)
            if whole is None:
                pixels = random.integers(0, 120, (height // 8, width // 8, 3)) + colours[name]
                picture = Image.fromarray(pixels.astype(np.uint8)).resize((width, height))
            else:
                height, width = height + 100, width + 100
                top, left = random.integers((whole.shape[0] - height, whole.shape[1] - width))
                picture = Image.fromarray(whole[top : top + height, left : left + width])
            folder = directory / part / name
            folder.mkdir(parents=True, exist_ok=True)
            picture.save(folder / f"{number:05d}.jpg")


def make_cifar(directory: Path) -> None:
    """Noise in the binary format of CIFAR-10: a label and the pixels of each image."""
    (folder := directory / "cifar-10-batches-bin").mkdir()
    random = np.random.default_rng(0)
    for name in *(f"data_batch_{number}" for number in range(1, 6)), "test_batch":
        images = random.integers(0, 256, (60, 3073), np.uint8)
        images[:, 0] %= 10
        (folder / f"{name}.bin").write_bytes(images.tobytes())
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    (folder / "batches.meta.txt").write_text("\n".join([*names.split(), "", ""]))


def made_once(name: str, make: Callable[[Path], None], given: str) -> str:
    """The directory that is given, or else one that is made for all examples."""
    if given:
        return given
    made, begun = TEMPORARY / name, fresh()
    if not made.exists():
        make(Path(begun))
        with suppress(OSError):  # another process was faster
            os.rename(begun, made)
    shutil.rmtree(begun, ignore_errors=True)
    return str(made)


def fresh() -> str:
    """A new directory, for what an example writes."""
    TEMPORARY.mkdir(mode=0o700, exist_ok=True)
    return tempfile.mkdtemp(dir=TEMPORARY)


pictures = partial(made_once, "pictures", make)  # for the option --data
synsets = partial(made_once, "synsets", partial(make, colours=SYNSETS))
cifar = partial(made_once, "cifar", make_cifar)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("directory", type=Path, nargs="?", metavar="DIR", help="default: one that examples use")
    add("--images", type=int, default=400, help="for training (%(default)s)")
    add("--photographs", action="store_true", help="needs: pip install scikit-image")
    given = parser.parse_args()
    if given.directory:
        make(given.directory, given.images, photographs=given.photographs)
    print(pictures(str(given.directory or "")))
