"""The data set of the demo: JPEGs of a real photograph, as large as those of ImageNet."""

import argparse
import io
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from matplotlib.cbook import get_sample_data
from PIL import Image

from bmap_tools.console import Tick

from . import packing
from .directories import make_whole
from .environment import usable_cores
from .progress import progress
from .shards import SUFFIXES

IMAGES = 2000
CLASSES = 10
SMALLEST_BYTES = 40_000
LARGEST_BYTES = 180_000
SYNSETS = (
    *("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331", "n01498041"),
    *("n01514668", "n01514859", "n01518878", "n01530575", "n01531178", "n01532829", "n01534433"),
    *("n01537544", "n01558993", "n01560419", "n01580077", "n01582220", "n01592084"),
)
"""The first classes of ILSVRC2012."""

_ATTEMPTS = 100


def make(directory: str, tick: Tick, images: int = IMAGES) -> str:
    """Make `directory/train`, unless it is complete, and return its path.

    The pictures are the same every time. See `make_whole()` for interrupts and files of the user.
    """
    classes = [f"class_{label}" for label in range(CLASSES)]
    names = [f"{name}/{i:05d}.jpg" for i, name in enumerate(_classes(classes, images))]
    return _make(directory, "train", names, tick)


def make_imagenet(
    directory: str,
    tick: Tick,
    images: int = IMAGES,
    *,
    classes: int = CLASSES,
    flat_val: bool = False,
) -> None:
    """Make `directory/train` and `directory/val` in the layout of ILSVRC2012, as `make()` does.

    Args:
        directory: where.
        tick: is called with the number of pictures made.
        images: how many pictures `train` has; `val` has a fifth of them, but one of each class.
        classes: how many classes, 1 to 20; they have the names of the first synsets.
        flat_val: `val` has no class directories, and `LOC_val_solution.csv` labels it.
    """
    if not 1 <= classes <= len(SYNSETS) or images < classes:
        what = f"classes must be from 1 to {len(SYNSETS)}, and images at least as many"
        raise ValueError(f"{what}, not {classes} and {images}")
    validation = _validation(images, classes)
    names = [
        f"{each}/{each}_{i}.JPEG" for i, each in enumerate(_classes(SYNSETS[:classes], images))
    ]
    _make(directory, "train", names, tick)
    synsets = _classes(SYNSETS[:classes], validation)
    random.Random(0).shuffle(synsets)
    ids = [f"ILSVRC2012_val_{i:08d}" for i in range(1, validation + 1)]
    names = [
        f"{i}.JPEG" if flat_val else f"{each}/{i}.JPEG"
        for i, each in zip(ids, synsets, strict=True)
    ]
    _make(directory, "val", names, lambda done: tick(images + done), first=images)
    if flat_val:
        rows = [f"{i},{each} 1 2 3 4 \n" for i, each in zip(ids, synsets, strict=True)]
        solution = "".join(["ImageId,PredictionString\n", *rows])
        Path(directory, "LOC_val_solution.csv").write_text(solution)


def _validation(images: int, classes: int) -> int:
    return max(classes, images // 5)


def _make(directory: str, part: str, names: Sequence[str], tick: Tick, first: int = 0) -> str:
    """Make the pictures from number `first` on in `directory/part`, if they are not there."""
    return make_whole(directory, part, names, lambda path: _fill(path, names, first, tick))


def _encode(photograph: Image.Image, number: int) -> bytes:
    """Picture `number`: a random part of the photograph, in a random size and quality."""
    generator = random.Random(number)
    for _ in range(_ATTEMPTS):
        width, height = (round(side * generator.uniform(0.6, 1)) for side in photograph.size)
        left = generator.randint(0, photograph.width - width)
        top = generator.randint(0, photograph.height - height)
        scale = generator.uniform(1, 2)
        size = round(width * scale), round(height * scale)
        picture = photograph.resize(size, box=(left, top, left + width, top + height))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=generator.randint(80, 95))
        if SMALLEST_BYTES <= file.tell() <= LARGEST_BYTES:
            return file.getvalue()
    sizes = f"{SMALLEST_BYTES} to {LARGEST_BYTES} bytes"
    raise ValueError(f"picture {number}: no size from {sizes} in {_ATTEMPTS} attempts")


def _classes(classes: Sequence[str], images: int) -> list[str]:
    """The class of each picture; all are of equal size."""
    return [classes[i * len(classes) // images] for i in range(images)]


def _fill(root: str, names: Sequence[str], first: int, tick: Tick) -> None:
    for folder in {os.path.dirname(name) for name in names}:
        os.makedirs(os.path.join(root, folder), exist_ok=True)
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
        photograph = image.convert("RGB")
    # Threads suffice: Pillow releases the interpreter lock while it scales and encodes.
    with ThreadPoolExecutor(usable_cores()) as pool:
        encoded = pool.map(partial(_encode, photograph), range(first, first + len(names)))
        for done, (name, contents) in enumerate(zip(names, encoded, strict=True), 1):
            Path(root, name).write_bytes(contents)
            tick(done)


def main() -> None:
    """Make a data set of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataset", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="where it is made")
    parser.add_argument("--images", type=int, default=IMAGES, help="default: %(default)s")
    parser.add_argument("--layout", choices=("classes", "imagenet"), default="classes")
    parser.add_argument("--classes", type=int, default=CLASSES, help=f"1 to {len(SYNSETS)}")
    parser.add_argument(
        "--flat-val", action="store_true", help="val without class directories, and a CSV of labels"
    )
    text = "also pack train into N tars of WebDataset and N TFRecord files, in DIR/shards"
    parser.add_argument("--shards", type=int, metavar="N", help=text)
    given = parser.parse_args()
    imagenet = given.layout == "imagenet"
    if not imagenet and (given.flat_val or given.classes != CLASSES):
        parser.error("--classes and --flat-val are for --layout imagenet")
    total = given.images + imagenet * _validation(given.images, given.classes)
    try:
        with progress(f"{total} images in {given.directory}", total) as tick:
            if imagenet:
                shape = {"classes": given.classes, "flat_val": given.flat_val}
                make_imagenet(given.directory, tick, given.images, **shape)
            else:
                make(given.directory, tick, given.images)
        if given.shards is not None:
            packed = len(SUFFIXES) * given.images
            with progress(f"packing into {given.shards} shards of each format", packed) as tick:
                packing.make(given.directory, tick, given.shards)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
