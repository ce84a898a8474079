"""Parts of images replaced by a colour."""

from dataclasses import dataclass
from typing import Any

from nvidia.dali import fn, types

from ._types import Channels, DataNode, Layout
from .geometry import height_and_width, integers_below


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Fills a random rectangle with a colour; torchvision's `RandomErasing`.

    Attributes:
        probability: the probability of a rectangle in an image.
        area: area of the rectangle, as a share of the image; uniformly distributed.
        aspect: height to width of the rectangle; its logarithm is uniformly distributed.
        fill: the colour, in the units of the image: after `Normalize`, 0 is the mean.
        layout: layout of the images.
        seed: seed of the random numbers.
    """

    probability: float = 0.5
    area: tuple[float, float] = (0.02, 0.33)
    aspect: tuple[float, float] = (0.3, 3.3)
    fill: Channels = (0,)
    layout: Layout = "HWC"
    seed: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        start, size = fn.random_crop_generator(
            fn.cast(fn.stack(*height_and_width(images, self.layout)), dtype=types.INT64),
            random_area=self.area,
            random_aspect_ratio=(1 / self.aspect[1], 1 / self.aspect[0]),  # width to height
            num_attempts=10,
            seed=self.seed,
        )
        seed = None if self.seed is None else self.seed + 1
        chosen = fn.random.coin_flip(probability=self.probability, seed=seed)
        size = fn.cast(size * chosen, dtype=types.FLOAT)
        return _fill(images, start, size, self.fill)


@dataclass(frozen=True, slots=True)
class Cutout:
    """Fills a random square with a colour.

    Attributes:
        size: height and width of the square, which lies wholly in the image.
        fill: the colour, in the units of the image.
        layout: layout of the images.
        seed: seed of the random numbers.
    """

    size: int
    fill: Channels = (0,)
    layout: Layout = "HWC"
    seed: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        sides = fn.stack(*height_and_width(images, self.layout))
        start = integers_below(sides - self.size + 1, self.seed)
        return _fill(images, start, (self.size, self.size), self.fill)


def _fill(images: DataNode, start: DataNode, size: Any, fill: Channels) -> DataNode:
    anchor = fn.cast(start, dtype=types.FLOAT)
    return fn.erase(images, anchor=anchor, shape=size, axis_names="HW", fill_value=fill)
