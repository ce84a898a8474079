"""Compares the batches of a loader with those of torchvision, which has read the same samples."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

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
