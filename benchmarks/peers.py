"""torch's DataLoader over images as torchvision opens them, and comparisons of batches with its.

Nothing of dali_storage is used here.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets.folder import default_loader
from torchvision.models import ResNet50_Weights

Batch: TypeAlias = tuple[Any, Any]
"""Images, float32[n, 3, height, width], and labels, int64[n], of torch."""

LEAST_IMAGES = 64
"""As many are needed to compare random images."""

CIFAR10_TOLERANCE = 1e-6
"""Of normalised pixels: rounding."""
IMAGENET_TOLERANCE = 1.01 / 255 / 0.224
"""Of normalised pixels: 1 of 255."""

# Of 120 comparisons of torchvision's crops of 64 photographs with themselves, none was above 2.6
# standard errors and 1.6 times.
_MOST_T = 6.0
_MOST_TIMES = 2.5

IMAGENET_EVAL = ResNet50_Weights.IMAGENET1K_V1.transforms()
"""Resize(256), CenterCrop(224) and Normalize, as torchvision ships them with its ResNet-50."""

_MEAN, _STD = (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)
"""Of the training images of CIFAR-10, over all pixels."""


# The transforms of torchvision's references/classification/presets.py, which train its models;
# the first version of transforms, which is as fast as v2 here, and with CIFAR-10 faster.
IMAGENET_TRAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(224),
        *(transforms.RandomHorizontalFlip(), transforms.ToTensor()),
        transforms.Normalize(IMAGENET_EVAL.mean, IMAGENET_EVAL.std),
    ]
)
CIFAR10_EVAL = transforms.Compose([transforms.ToTensor(), transforms.Normalize(_MEAN, _STD)])
CIFAR10_TRAIN = transforms.Compose(
    [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), CIFAR10_EVAL]
)


@dataclass(frozen=True, slots=True)
class Pictures:
    """A data set of torch: pictures that `load` opens, transformed, and their labels."""

    load: Callable[[Any], Any]
    pictures: Any
    labels: Sequence[int]
    transform: Any

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.load(self.pictures[index])), self.labels[index]


photographs = partial(Pictures, default_loader)
"""Image files, opened as by `torchvision.datasets.ImageFolder`."""


def cifar10(files: Sequence[str], labels: Sequence[int], transform: Any) -> Pictures:
    """The images of CIFAR-10 in memory, as in `torchvision.datasets.CIFAR10`; their own labels."""
    records, labels = read_cifar10(files)
    images = np.ascontiguousarray(records.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return Pictures(Image.fromarray, images, labels, transform)


def batches(dataset: Any, order: npt.NDArray[np.int64], workers: int) -> Any:
    """A DataLoader whose batch i has the samples `order[i]`, and which then begins anew.

    It has no last batch, because its workers would be idle during the last ones of a round.
    """
    return DataLoader(dataset, batch_sampler=cycle(order.tolist()), num_workers=workers)


def read_cifar10(files: Sequence[str]) -> tuple[Any, list[int]]:
    """The pixels, uint8[n, 3072], and labels in files of CIFAR-10, binary or for Python."""
    pixels, labels = [], []
    for file in files:
        if file.endswith(".bin"):
            records = np.fromfile(file, np.uint8).reshape(-1, 1 + 3072)
            entries = {"data": records[:, 1:], "labels": records[:, 0].tolist()}
        else:
            with open(file, "rb") as opened:
                entries = _Arrays(opened, encoding="latin1").load()
        pixels.append(entries["data"])
        labels += entries["labels"]
    return np.concatenate(pixels), labels


class _Arrays(pickle.Unpickler):
    """Makes arrays and plain values; calls nothing else, whatever the file says."""

    def find_class(self, module: str, name: str) -> Any:
        """The callable of this name, which only may be one that makes an array."""
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"a file of CIFAR-10 does not name {module}.{name}")


def difference(ours: Batch, theirs: Batch, tolerance: float) -> str | None:
    """How two batches without random numbers differ; None if no pixel does by more than that."""
    if wrong := different_kind(ours, theirs):
        return wrong
    apart = (ours[0] - theirs[0]).abs()
    most = float(apart.max())
    if most <= tolerance:
        return None
    share = float((apart > tolerance).float().mean())
    return f"pixels differ by up to {most:.3g}, {share:.1%} of them by more than {tolerance:.3g}"


def different_kind(ours: Batch, theirs: Batch) -> str | None:
    """How two batches differ, apart from the pixels."""
    for what, mine, its in zip(("images", "labels"), ours, theirs, strict=True):
        if (mine.dtype, mine.shape) != (its.dtype, its.shape):
            kinds = [f"{each.dtype}{list(each.shape)}" for each in (mine, its)]
            return f"{what}: {kinds[0]} instead of {kinds[1]}"
    wrong = int((ours[1] != theirs[1]).sum())
    return f"{wrong} of {len(ours[1])} labels differ" if wrong else None


def compare_crops(ours: Any, draws: Sequence[Any], exact: Any) -> str | None:
    """Whether random crops look like torchvision's, of which `draws` are two.

    All three took other windows. Therefore the mean and the deviation of each channel of each image
    are compared: ours may be as far from torchvision's as these are from each other.
    """
    for what, of in (("mean", torch.mean), ("deviation", torch.std)):
        mine, first, second = (of(images, dim=(2, 3)) for images in (ours, *draws))
        apart, usual = mine - first, first - second
        error = apart.std(dim=0) / len(apart) ** 0.5
        if bool((apart.mean(dim=0).abs() > _MOST_T * error).any()):
            return f"the {what} of the pixels is {apart.mean(dim=0).abs().max():.2g} off"
        times = float((apart.square().mean() / usual.square().mean()).sqrt())
        if not 1 / _MOST_TIMES < times < _MOST_TIMES:
            return f"the {what} of the pixels of an image varies {times:.2g} times as much"
    return None


def compare_shifts(ours: Any, draws: Sequence[Any], exact: Any) -> str | None:
    """Whether every image is one of the 162 that padding by 4, cropping and flipping can make."""
    # Of the margin, which nearly every crop has a part of; nothing is darker.
    black = draws[0].amin(dim=(0, 2, 3))[:, None, None]
    padded = black.expand(len(exact), -1, 40, 40).clone()
    padded[:, :, 4:36, 4:36] = exact
    best, choice = torch.full((len(ours),), torch.inf), torch.zeros(len(ours), dtype=torch.int64)
    for number in range(162):
        top, left, flipped = number // 18, number // 2 % 9, number % 2
        crop = padded[:, :, top : top + 32, left : left + 32]
        apart = (ours - (crop.flip(3) if flipped else crop)).abs().amax(dim=(1, 2, 3))
        choice[apart < best] = number
        best = torch.minimum(best, apart)
    if wrong := int((best > CIFAR10_TOLERANCE).sum()):
        return f"{wrong} of {len(ours)} images are no crop of the padded image"
    if (different := len(choice.unique())) < LEAST_IMAGES / 4:
        return f"{len(ours)} images have only {different} different crops"
    return None
