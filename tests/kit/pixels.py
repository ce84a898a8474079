"""The same images through a loader and through Pillow, and how far they differ."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from dali_storage.loaders import image_folder

Pixels = NDArray[Any]


def delivered(root: Path, **options: Any) -> list[Pixels]:
    """The images that a loader delivers, one by one in the order of the files, HWC."""
    common: dict[str, Any] = {"device": "cpu", "num_threads": 2, "to": "numpy", "layout": "HWC"}
    with image_folder(root, **{"train": False, "batch_size": 1, **common, **options}) as loader:
        return [image.copy() for images, _ in loader for image in images]


def files(root: Path) -> list[Path]:
    """The files of the images, in the order of `delivered()`."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def decoded(root: Path, change: Callable[[Image.Image], Any] = lambda image: image) -> list[Pixels]:
    """The images as Pillow decodes them, changed by a function."""
    found = []
    for path in files(root):
        with Image.open(path) as image:
            found.append(np.array(change(image.convert("RGB"))))
    return found


@dataclass(frozen=True)
class Difference:
    mean: float
    p99: float
    most: float


def difference(ours: Sequence[Pixels], theirs: Sequence[Pixels]) -> Difference:
    """Of all pixels of images of the same shapes."""
    assert [each.shape for each in ours] == [each.shape for each in theirs]
    pairs = list(zip(ours, theirs, strict=True))
    if all(a.dtype == b.dtype == np.uint8 for a, b in pairs):
        # Sorting millions of numbers would take seconds.
        gaps = [np.abs(a.astype(np.int16) - b).ravel() for a, b in pairs]
        counts = sum(np.bincount(each, minlength=256) for each in gaps)
        levels = np.arange(256)
        p99 = np.searchsorted(np.cumsum(counts), 0.99 * counts.sum())
        return Difference(levels @ counts / counts.sum(), p99, levels[counts > 0].max())
    all_of = np.concatenate([np.abs(a.astype(np.float64) - b).ravel() for a, b in pairs])
    return Difference(all_of.mean(), np.percentile(all_of, 99), all_of.max())
