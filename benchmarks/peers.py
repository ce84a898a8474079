"""What loaders are compared with: torch's DataLoader over images as torchvision opens them.

Nothing of dali_storage is used here, because the pixels of the loaders are compared with these.
"""

import pickle
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.folder import default_loader
from torchvision.models import ResNet50_Weights

IMAGENET_EVAL = ResNet50_Weights.IMAGENET1K_V1.transforms()
"""Resize(256), CenterCrop(224) and Normalize, as torchvision ships them with its ResNet-50."""

_MEAN, _STD = (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)
"""Of the training images of CIFAR-10, over all pixels."""


# The transforms of torchvision's references/classification/presets.py, which train its models;
# the first version of transforms, which is as fast as v2 here, and with CIFAR-10 faster.
IMAGENET_TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(IMAGENET_EVAL.mean, IMAGENET_EVAL.std),
    ]
)
CIFAR10_EVAL = transforms.Compose([transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)])
CIFAR10_TRAIN = transforms.Compose(
    [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), CIFAR10_EVAL]
)


class Photographs:
    """A data set of image files, opened as by `torchvision.datasets.ImageFolder`."""

    def __init__(self, paths: Sequence[str], labels: Sequence[int], transform: Any) -> None:
        self._paths = paths
        self._labels = labels
        self._transform = transform

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._transform(default_loader(self._paths[index])), self._labels[index]


class Records:
    """A data set of the images of CIFAR-10 in memory, as `torchvision.datasets.CIFAR10`."""

    def __init__(self, files: Sequence[str], labels: Sequence[int], transform: Any) -> None:
        """Read all files; the labels are in them, too."""
        records, self._labels = read_cifar10(files)
        images = records.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        self._images = np.ascontiguousarray(images)
        self._transform = transform

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self._transform(Image.fromarray(self._images[index])), self._labels[index]


def batches(dataset: Any, order: npt.NDArray[np.int64], workers: int) -> Any:
    """A DataLoader whose batch i has the samples `order[i]`, and which then begins anew.

    It has no last batch, because its workers would be idle during the last ones of a round.
    """
    return DataLoader(dataset, batch_sampler=cycle(order.tolist()), num_workers=workers)


def read_cifar10(files: Sequence[str]) -> tuple[Any, list[int]]:
    """The pixels, uint8[n, 3072], and labels in files of CIFAR-10, binary or for Python."""
    parts = [_binary(file) if file.endswith(".bin") else _pickled(file) for file in files]
    return np.concatenate([part for part, _ in parts]), [one for _, some in parts for one in some]


def _binary(file: str) -> tuple[Any, list[int]]:
    records = np.fromfile(file, np.uint8).reshape(-1, 1 + 3072)
    return records[:, 1:], records[:, 0].tolist()


def _pickled(file: str) -> tuple[Any, list[int]]:
    with open(file, "rb") as opened:
        entries = _Arrays(opened, encoding="latin1").load()
    return entries["data"], entries["labels"]


class _Arrays(pickle.Unpickler):
    """Makes arrays and plain values; calls nothing else, whatever the file says."""

    def find_class(self, module: str, name: str) -> Any:
        """The callable of this name, which only may be one that makes an array."""
        known = {
            "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
            "numpy.ndarray": np.ndarray,
            "numpy.dtype": np.dtype,
        }
        if f"{module}.{name}" not in known:
            raise pickle.UnpicklingError(f"a file of CIFAR-10 does not name {module}.{name}")
        return known[f"{module}.{name}"]
