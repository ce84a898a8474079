"""Flips and colours."""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.auto_aug import auto_augment, rand_augment, trivial_augment

from ._types import Channels, DataNode, Layout

Policy: TypeAlias = Literal["trivial_augment_wide", "rand_augment", "auto_augment"]


@dataclass(frozen=True, slots=True)
class Flip:
    """Exchanges left and right, at random.

    Attributes:
        probability: the probability of a flip.
        seed: seed of the random numbers.
    """

    probability: float = 0.5
    seed: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        return fn.flip(images, horizontal=self.draw())

    def draw(self) -> DataNode:
        """1 for each image of the batch to flip, else 0."""
        return fn.random.coin_flip(probability=self.probability, seed=self.seed)


@dataclass(frozen=True, slots=True)
class Normalize:
    """(pixel / 255 - mean) / std, float32.

    Attributes:
        mean: mean of the pixels of a data set, as a share of 255.
        std: their standard deviation, as a share of 255.
        layout: layout of the images.
    """

    mean: Channels
    std: Channels
    layout: Layout = "HWC"

    def __call__(self, images: DataNode) -> DataNode:
        return fn.crop_mirror_normalize(
            images, dtype=types.FLOAT, output_layout=self.layout, **self.scaled()
        )

    def scaled(self) -> dict[str, list[float]]:
        """The arguments of `fn.crop_mirror_normalize`."""
        return {"mean": [255 * m for m in self.mean], "std": [255 * s for s in self.std]}

    def pixels(self, colour: Channels) -> Channels:
        """The pixel, from 0 to 255, for this normalised colour."""
        channels = np.asarray(colour) * self.std + self.mean
        return tuple((255 * channels).round().tolist())


@dataclass(frozen=True, slots=True)
class ColourJitter:
    """Random brightness, contrast and saturation, in this order; torchvision's `ColorJitter`.

    torchvision draws the order, too. There is no hue: DALI rotates hues in another colour space, by
    up to 86 of 255 away from torchvision's.

    Attributes:
        brightness: b; the image is multiplied by a random number from max(0, 1 - b) to 1 + b.
        contrast: the same for the distances from the mean of the grey image.
        saturation: the same for the distances from the grey image.
        seed: seed of the random numbers.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    seed: int | None = None

    def __call__(self, images: DataNode) -> DataNode:
        if self.brightness:
            images = fn.brightness(images, brightness=self._factor(self.brightness, 0))
        if self.contrast:
            grey = fn.color_space_conversion(images, image_type=types.RGB, output_type=types.GRAY)
            centre = fn.cast(fn.reductions.mean(grey), dtype=types.FLOAT).cpu()
            factor = self._factor(self.contrast, 1)
            images = fn.contrast(images, contrast=factor, contrast_center=centre)
        if self.saturation:
            images = fn.saturation(images, saturation=self._factor(self.saturation, 2))
        return images

    def _factor(self, width: float, number: int) -> DataNode:
        seed = None if self.seed is None else self.seed + number
        return fn.random.uniform(range=(max(0.0, 1 - width), 1 + width), seed=seed)


@dataclass(frozen=True, slots=True)
class Auto:
    """A policy of automatic augmentation, from `nvidia.dali.auto_aug`.

    Attributes:
        policy: "trivial_augment_wide", "rand_augment", or "auto_augment" (for ImageNet).
        operations: number of operations of "rand_augment" per image.
        magnitude: strength of these operations, from 0 to `bins` - 1.
        bins: number of magnitudes; for "trivial_augment_wide", too.
        fill: the brightness, from 0 to 255, outside a shifted or rotated image.
        seed: seed of the random numbers.
    """

    policy: Policy
    operations: int = 2
    magnitude: int = 9
    bins: int = 31
    fill: int = 0
    seed: int | None = None

    conditional: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {get_args(Policy)}, not {self.policy!r}")

    def __call__(self, images: DataNode) -> DataNode:
        # DALI's policies use operators by their old names, and DALI's warnings about these names
        # pass all filters.
        with warnings.catch_warnings(record=True) as caught:
            images = self._apply(images)
        for other in caught:
            if other.category is not DeprecationWarning:
                warnings.warn(str(other.message), other.category, stacklevel=2)
        return images

    def _apply(self, images: DataNode) -> DataNode:
        common: dict[str, Any] = {"fill_value": self.fill, "seed": self.seed}
        if self.policy == "auto_augment":
            return auto_augment.auto_augment_image_net(images, **common)
        common["num_magnitude_bins"] = self.bins
        if self.policy == "trivial_augment_wide":
            return trivial_augment.trivial_augment_wide(images, **common)
        return rand_augment.rand_augment(images, n=self.operations, m=self.magnitude, **common)
