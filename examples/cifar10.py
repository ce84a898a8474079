"""cifar10.py of DataLoaders_DALI over today's API, with equal transforms on both sides.

Functions and arguments have their old names; `device` is new. `image_dir` has cifar-10-batches-py/.
As in the original, `val_size` has no effect. `cutout` now works with DALI, too. `local_rank` is the
rank, which is right on one machine; without `shard=`, a loader finds its rank on several.
"""

import argparse
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10
from torchvision.transforms import v2

from dali_storage.loaders import Loader, Shard, cifar10, transforms

Part: TypeAlias = Literal["train", "val"]
MEAN, STD = (0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)


def get_cifar_iter_dali(
    type: Part, image_dir: str, batch_size: int, num_threads: int, local_rank: int = 0,
    world_size: int = 1, val_size: int = 32, cutout: int = 0,
    device: Literal["gpu", "cpu"] = "gpu",
) -> Loader:  # fmt: skip
    steps: list[transforms.Transform] = [transforms.Normalize(MEAN, STD)]
    if type == "train":
        steps = [transforms.PadCrop(32, padding=4), transforms.Flip(), *steps]
        steps += [transforms.Cutout(cutout)] if cutout else []
    return cifar10(
        image_dir,
        "train" if type == "train" else "test",
        batch_size=batch_size,
        transforms=steps,
        shard=Shard(local_rank, world_size, local_rank),
        device=device,
        num_threads=num_threads,
    )


def get_cifar_iter_torch(
    type: Part, image_dir: str, batch_size: int, num_threads: int, cutout: int = 0
) -> DataLoader[Any]:
    train = type == "train"
    steps = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    if train:
        steps = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *steps]
        share = (cutout / 32) ** 2
        steps += [v2.RandomErasing(1, scale=(share, share), ratio=(1, 1))] if cutout else []
    images = CIFAR10(image_dir, train=train, transform=v2.Compose(steps))
    return DataLoader(images, batch_size, shuffle=train, num_workers=num_threads, drop_last=train)


if __name__ == "__main__":
    from make_pictures import cifar  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=cifar, default="", metavar="DIR", help="is image_dir")
    data = parser.parse_args().data
    loader = get_cifar_iter_dali("val", data, 16, 2, device="cpu")
    for images, labels in loader:
        print(tuple(images.shape), labels.tolist())
