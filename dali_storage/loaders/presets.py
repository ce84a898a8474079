"""What happens to the images of well-known data sets, and where each number comes from."""

from dataclasses import dataclass

from .transforms import (
    CentreCrop,
    Flip,
    Normalize,
    PadCrop,
    RandomResizedCrop,
    ShorterSide,
    Transform,
)


@dataclass(frozen=True, slots=True)
class Preset:
    """A list of transforms.

    Attributes:
        transforms: from the decoded image (uint8, RGB) to the one that a model sees.
        source: where the numbers come from.
    """

    transforms: tuple[Transform, ...]
    source: str


_IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR10 = Normalize((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))

IMAGENET_TRAIN = Preset((RandomResizedCrop(224), Flip(), _IMAGENET), "torchvision")
IMAGENET_EVAL = Preset((ShorterSide(256), CentreCrop(224), _IMAGENET), "torchvision")
CIFAR10_TRAIN = Preset((PadCrop(32, 4), Flip(), _CIFAR10), "")
CIFAR10_EVAL = Preset((_CIFAR10,), "")
RAW = Preset((), "the images as they are")
