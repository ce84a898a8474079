"""Types of the transforms."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

DataNode: TypeAlias = Any  # DALI's stubs are not used
Transform: TypeAlias = Callable[[DataNode], DataNode]
"""A function of the images of a batch; or an operator of `nvidia.dali.experimental.torchvision`."""

Layout: TypeAlias = Literal["HWC", "CHW"]

Channels: TypeAlias = tuple[float, ...]
"""One number for all channels, or one for each."""
