"""imagenet.py of DataLoaders_DALI over today's API, with equal transforms on both sides.

Functions and arguments have their old names; `device` is new. `image_dir` has train/ and val/. As
in the original, `num_gpus` has no effect. `local_rank` is the rank, which is right on one machine;
without `shard=`, a loader finds its rank on several.
"""

import argparse
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_storage.loaders import Loader, Shard, imagenet, transforms

Part: TypeAlias = Literal["train", "val"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def get_imagenet_iter_dali(
    type: Part, image_dir: str, batch_size: int, num_threads: int, device_id: int, num_gpus: int,
    crop: int, val_size: int = 256, world_size: int = 1, local_rank: int = 0,
    device: Literal["gpu", "cpu"] = "gpu",
) -> Loader:  # fmt: skip
    steps: dict[str, list[transforms.Transform]] = {
        "train": [transforms.RandomResizedCrop(crop), transforms.Flip()],
        "val": [transforms.ShorterSide(val_size), transforms.CentreCrop(crop)],
    }
    return imagenet(
        image_dir,
        type,
        batch_size=batch_size,
        transforms=[*steps[type], transforms.Normalize(MEAN, STD)],
        shard=Shard(local_rank, world_size, local_rank),
        device=device,
        device_id=device_id if device == "gpu" else None,
        num_threads=num_threads,
    )


def get_imagenet_iter_torch(
    type: Part, image_dir: str, batch_size: int, num_threads: int, device_id: int, num_gpus: int,
    crop: int, val_size: int = 256, world_size: int = 1, local_rank: int = 0,
) -> DataLoader[Any]:  # fmt: skip
    steps = {
        "train": [v2.RandomResizedCrop(crop), v2.RandomHorizontalFlip()],
        "val": [v2.Resize(val_size), v2.CenterCrop(crop)],
    }
    numbers = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    images = ImageFolder(f"{image_dir}/{type}", v2.Compose([*steps[type], *numbers]))
    sampler = DistributedSampler[Any](images, world_size, local_rank, shuffle=type == "train")
    return DataLoader(
        images, batch_size, sampler=sampler, num_workers=num_threads, drop_last=type == "train"
    )


if __name__ == "__main__":
    from make_pictures import synsets  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=synsets, default="", metavar="DIR", help="is image_dir")
    data = parser.parse_args().data
    loader = get_imagenet_iter_dali("val", data, 16, 2, 0, 1, 224, device="cpu")
    for images, labels in loader:
        print(tuple(images.shape), labels.tolist())
