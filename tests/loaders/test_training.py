"""A network learns as well from our images as from torchvision's."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from dali_storage.loaders import image_folder
from dali_storage.loaders.transforms import (
    CentreCrop,
    Flip,
    Normalize,
    RandomResizedCrop,
    ShorterSide,
)

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
EPOCHS, BATCH = 4, 25
TRAIN, EVAL = 300, 100


def draw(kind, random):
    """Stripes across or upright, in warm or cold colours, under noise."""
    height, width = random.integers(40, 64, 2)
    y, x = np.mgrid[:height, :width] + random.uniform(0, 9)
    stripes = np.sin(random.uniform(0.7, 0.9) * (x if kind % 2 else y))
    colour = np.array([160, 110, 60] if kind < 2 else [60, 110, 160]) + random.normal(0, 15, 3)
    noise = random.normal(0, 20, (height, width, 3))
    pixels = colour + 60 * stripes[..., None] + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    root, random = tmp_path_factory.mktemp("shapes"), np.random.default_rng(1)
    for part, images in (("train", TRAIN), ("val", EVAL)):
        for number in range(images):
            folder = root / part / f"kind{number % 4}"
            folder.mkdir(parents=True, exist_ok=True)
            draw(number % 4, random).save(folder / f"{number}.jpg", quality=90)
    return root


def ours(root, seed):
    normalize = Normalize(MEAN, STD)
    common = {"batch_size": BATCH, "device": "cpu", "seed": seed}
    crop = RandomResizedCrop(32, area=(0.3, 1.0))
    return (
        image_folder(root / "train", train=True, transforms=[crop, Flip(), normalize], **common),
        image_folder(
            root / "val",
            train=False,
            transforms=[ShorterSide(40), CentreCrop(32), normalize],
            **common,
        ),
    )


def torchvisions(root):
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    crop = v2.RandomResizedCrop(32, scale=(0.3, 1.0))
    train = v2.Compose([crop, v2.RandomHorizontalFlip(), *end])
    val = v2.Compose([v2.Resize(40), v2.CenterCrop(32), *end])
    return (
        DataLoader(ImageFolder(str(root / "train"), train), BATCH, shuffle=True, drop_last=True),
        DataLoader(ImageFolder(str(root / "val"), val), BATCH),
    )


def accuracy(train, val, seed):
    """Of a small network after a few epochs, on all images of `val`."""
    torch.manual_seed(seed)
    layers = []
    for inputs, outputs in ((3, 12), (12, 24)):
        layers += [nn.Conv2d(inputs, outputs, 5, 2), nn.BatchNorm2d(outputs), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for images, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(images).argmax(1) == labels for images, labels in val])
    assert len(right) == EVAL
    return right.float().mean().item()


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
def test_a_network_learns_from_our_images_as_from_torchvisions(shapes):
    found = []
    for seed in range(3):
        train, val = ours(shapes, seed)
        with train, val:
            found.append(accuracy(train, val, seed))
    expected = [accuracy(*torchvisions(shapes), seed) for seed in range(3)]
    for each in (found, expected):
        assert min(each) >= 0.95, (found, expected)
    assert abs(np.mean(found) - np.mean(expected)) <= 0.05
