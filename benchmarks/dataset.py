"""The data set of the demo: JPEGs of a real photograph, as large as those of ImageNet."""

import errno
import io
import os
import random
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from matplotlib.cbook import get_sample_data
from PIL import Image

from bmap_tools.console import Tick

from .environment import usable_cores

IMAGES = 2000
CLASSES = 10
SMALLEST_BYTES = 40_000
LARGEST_BYTES = 180_000

_ATTEMPTS = 100


def make(directory: str, tick: Tick, images: int = IMAGES) -> str:
    """Make `directory/train`, unless it is complete, and return its path.

    The pictures are the same every time. They are written to another directory, which is then
    renamed, so that an interrupt leaves nothing. Files of the user are never deleted.
    """
    train, names = os.path.join(directory, "train"), set(_names(images))
    found = {str(path.relative_to(train)) for path in Path(train).rglob("*") if not path.is_dir()}
    if found - names:
        raise FileExistsError(errno.EEXIST, "there are other files than those of the demo", train)
    if found == names:
        return train
    os.makedirs(directory, exist_ok=True)
    making = tempfile.mkdtemp(prefix=".making-", dir=directory)
    try:
        _fill(making, tick, images)
        os.chmod(making, 0o755)  # mkdtemp makes it private
        shutil.rmtree(train, ignore_errors=True)
        os.rename(making, train)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return train


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


def _names(images: int) -> list[str]:
    """The names of the files, relative to the root; the classes are of equal size."""
    return [f"class_{i * CLASSES // images}/{i:05d}.jpg" for i in range(images)]


def _fill(root: str, tick: Tick, images: int) -> None:
    for label in range(CLASSES):
        os.mkdir(os.path.join(root, f"class_{label}"))
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
        photograph = image.convert("RGB")
    # Threads suffice: Pillow releases the interpreter lock while it scales and encodes.
    with ThreadPoolExecutor(usable_cores()) as pool:
        encoded = pool.map(partial(_encode, photograph), range(images))
        for done, (name, contents) in enumerate(zip(_names(images), encoded, strict=True), 1):
            Path(root, name).write_bytes(contents)
            tick(done)
