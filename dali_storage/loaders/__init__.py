"""Loaders: epochs of batches that any training loop can hold; ImageNet, CIFAR, folders of images.

`Loader` wraps a pipeline; `image_folder`, `imagenet`, `cifar10` and `cifar100` make one with the
pixels of torchvision.
"""

from ..ranks import Shard
from . import presets, transforms
from .cifar import cifar10, cifar100
from .folders import image_folder
from .imagenet import imagenet
from .loader import Loader
from .stats import LoaderStats

__all__ = [
    "Loader",
    "LoaderStats",
    "Shard",
    "cifar10",
    "cifar100",
    "image_folder",
    "imagenet",
    "presets",
    "transforms",
]
