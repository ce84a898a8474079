"""Transforms of images in a pipeline: functions of a DataNode, which replace torchvision's.

Each transform maps the images of a batch to changed images, uint8 and RGB by default. Random
transforms have a `seed`; the loaders replace a seed of None, and set the `layout`. Numbers are
torchvision's: sizes in pixels, means and deviations as shares of 255. Begin with `pixels` and
`geometry`; `erasing` replaces parts, `presets` are lists for well-known data sets. They keep
nothing.
"""

from ._types import DataNode, Layout, Transform
from .erasing import Cutout, RandomErasing
from .geometry import CentreCrop, PadCrop, RandomResizedCrop, ShorterSide
from .pixels import Auto, ColourJitter, Flip, Normalize

__all__ = [
    "Auto",
    "CentreCrop",
    "ColourJitter",
    "Cutout",
    "DataNode",
    "Flip",
    "Layout",
    "Normalize",
    "PadCrop",
    "RandomErasing",
    "RandomResizedCrop",
    "ShorterSide",
    "Transform",
]
