"""What happens to images in a pipeline: functions of a DataNode, which replace torchvision's.

Each takes the images of a batch and returns them changed. Where nothing else is said, they are
uint8, RGB. The random ones take a `seed`; the loaders choose one where it is None, and they set the
`layout`. The numbers are torchvision's: sizes in pixels, means and deviations as shares of 255.
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
