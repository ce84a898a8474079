"""Loaders: epochs of batches for any training loop; ImageNet, CIFAR, folders of images.

`Loader` wraps a pipeline; `image_folder`, `imagenet`, `cifar10` and `cifar100` make loaders with
the pixels of torchvision. Begin with loop/, the `Loader`; datasets/ makes pipelines, of
transforms/. This package holds names, and is imported by nothing of ours. A loader makes its
pipeline at the first use, and is closed by its user.
"""

from typing import TYPE_CHECKING

from ..contract.faces import hold_names

if TYPE_CHECKING:
    from ..ranks import Shard
    from . import transforms
    from .datasets.cifar import cifar10, cifar100
    from .datasets.folders import image_folder
    from .datasets.imagenet import imagenet
    from .loop.loader import Loader
    from .loop.stats import LoaderStats
    from .transforms import presets

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

hold_names(
    __name__,
    {
        "..ranks": "Shard",
        ".datasets.cifar": "cifar10 cifar100",
        ".datasets.folders": "image_folder",
        ".datasets.imagenet": "imagenet",
        ".loop.loader": "Loader",
        ".loop.stats": "LoaderStats",
        ".transforms": "transforms",
        ".transforms.presets": "presets",
    },
)
