"""What the tests of training frameworks train."""

import torch
from torch import nn

CLASSES = 5


def network() -> nn.Module:
    """A small network with the same weights every time."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, labels % CLASSES)
