"""Parts and sizes of images."""

from dataclasses import dataclass
from typing import Any

from nvidia.dali import fn, math, types

from ._types import Channels, DataNode, Layout


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random part of the image, resized.

    After ten attempts in very long images, torchvision falls back to the centre, and DALI to
    another part.

    Attributes:
        size: height and width of the result.
        area: area of the part, as a share of the image; uniformly distributed.
        aspect: width to height of the part; its logarithm is uniformly distributed.
        cubic: bicubic interpolation instead of bilinear. Both with antialiasing.
        layout: layout of the images.
        seed: seed of the random numbers.
    """

    size: int
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    cubic: bool = False
    layout: Layout = "HWC"
    seed: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        # Not fn.random_resized_crop, which uses pixels outside the part when scaling down.
        sides = fn.stack(*height_and_width(images, self.layout))
        start, size = fn.random_crop_generator(fn.cast(sides, dtype=types.INT64), **self.window())
        return self.resize(fn.slice(images, start=start, shape=size, axis_names="HW"))

    def window(self) -> dict[str, Any]:
        """The arguments of DALI's operators for drawing the part."""
        return {
            "random_area": self.area,
            "random_aspect_ratio": self.aspect,
            "num_attempts": 10,
            "seed": self.seed,
        }

    def resize(self, part: DataNode) -> DataNode:
        """Resize a part that a decoder has drawn."""
        return _resized(part, (self.size, self.size), self.cubic)


@dataclass(frozen=True, slots=True)
class ShorterSide:
    """The image resized, so that its shorter side has `size` pixels; torchvision's `Resize(size)`.

    The other side is truncated to an integer as in torchvision. (DALI's `resize_shorter` rounds,
    which changes every third pixel by more than 1.)

    Attributes:
        size: length of the shorter side.
        cubic: bicubic interpolation instead of bilinear. Both with antialiasing.
        layout: layout of the images.
    """

    size: int
    cubic: bool = False
    layout: Layout = "HWC"

    def __call__(self, images: DataNode) -> DataNode:
        height, width = height_and_width(images, self.layout)
        shorter = math.min(height, width)
        size = fn.stack(self.size * height // shorter, self.size * width // shorter)
        return _resized(images, fn.cast(size, dtype=types.FLOAT), self.cubic)


@dataclass(frozen=True, slots=True)
class CentreCrop:
    """The square in the middle of the image; torchvision's `CenterCrop`.

    Odd margins are rounded as Python does, half to even. A smaller image gets a black margin.

    Attributes:
        size: height and width.
        layout: layout of the images.
    """

    size: int
    layout: Layout = "HWC"

    def __call__(self, images: DataNode) -> DataNode:
        starts = [self._start(side) for side in height_and_width(images, self.layout)]
        return _cut(images, fn.stack(*starts), self.size)

    def _start(self, side: DataNode) -> DataNode:
        margin, missing = math.max(side - self.size, 0), math.max(self.size - side, 0)
        half = margin // 2
        odd = (margin - 2 * half) * (half - 2 * (half // 2))  # x.5, and x is odd
        return half + odd - missing // 2


@dataclass(frozen=True, slots=True)
class PadCrop:
    """A random square of the image with an added margin; torchvision's `RandomCrop`.

    If an image is too small even with its margin, the margin is wider; torchvision refuses.

    Attributes:
        size: height and width.
        padding: the width of the margin on all four sides.
        fill: the margin's pixels.
        layout: layout of the images.
        seed: seed of the random numbers.
        square: the side of the images, if all of them are squares of one size. None: looked up for
            each image, which costs DALI 5 us, more than the crop of a small image.
    """

    size: int
    padding: int = 4
    fill: Channels = (0,)
    layout: Layout = "HWC"
    seed: int | None = None
    square: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        if self.square is not None:
            last = self.square + self.padding - self.size
            starts = [float(start) for start in range(-self.padding, last + 1)]
            start = fn.random.uniform(values=starts, shape=(2,), seed=self.seed)
            return _cut(images, fn.cast(start, dtype=types.INT32), self.size, self.fill)
        sides = fn.stack(*height_and_width(images, self.layout))
        places = sides + (2 * self.padding - self.size + 1)
        start = integers_below(places, self.seed) - self.padding
        return _cut(images, start, self.size, self.fill)


def _resized(images: DataNode, size: Any, cubic: bool) -> DataNode:
    interpolation = types.INTERP_CUBIC if cubic else types.INTERP_LINEAR
    return fn.resize(images, size=size, interp_type=interpolation, antialias=True)


def height_and_width(images: DataNode, layout: Layout) -> tuple[DataNode, DataNode]:
    """The sides of the images, int32, on the CPU."""
    shape, first = images.shape(dtype=types.INT32), layout.index("H")
    return shape[first], shape[first + 1]


def _cut(images: DataNode, start: DataNode, size: int, fill: Channels = (0,)) -> DataNode:
    """The square from (y, x) on, filled outside the image."""
    outside = {"out_of_bounds_policy": "pad", "fill_values": fill}
    return fn.slice(images, start=start, shape=(size, size), axis_names="HW", **outside)


def integers_below(limits: DataNode, seed: int | None) -> DataNode:
    """Random integers (y, x), 0 <= y < limits[0] and 0 <= x < limits[1]."""
    shares = fn.random.uniform(range=(0.0, 1.0), shape=(2,), seed=seed)
    return fn.cast(math.floor(shares * limits), dtype=types.INT32)
