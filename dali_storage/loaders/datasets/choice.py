"""Which transforms the user has chosen."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..transforms import Cutout, DataNode, Normalize, RandomErasing, Transform
from ..transforms.presets import Preset
from .settings import Settings

_DALI = "nvidia.dali.experimental.torchvision"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of `nvidia.dali.experimental.torchvision`, as a function of a DataNode.

    That module's own pipelines call them by this private method; DALI 2.4 has no public one.
    """

    operator: Any
    conditional: ClassVar[bool] = True

    def __call__(self, images: DataNode) -> DataNode:
        return self.operator._invoke(images)


def chosen(settings: Settings, usual: Preset) -> tuple[Transform, ...]:
    """What happens to the images: the transforms or preset of the user, or else the usual one.

    Raises:
        ValueError: uint8 is asked for, but the user's transforms normalise.
        TypeError: an item is not a transform, or is for another device.
    """
    given = settings.transforms
    wanted = (settings.preset or usual).transforms if given is None else given
    steps = tuple(_checked(step, settings.device) for step in wanted)
    if settings.dtype != "uint8" or not normalizes(steps):
        return steps
    if given is not None:
        raise ValueError(
            "dtype='uint8' is of pixels from 0 to 255: leave Normalize out of transforms"
        )
    return _in_pixels(steps)


def normalizes(steps: Sequence[Transform]) -> bool:
    """Whether the result is normalised."""
    return any(isinstance(step, Normalize) for step in steps)


def conditional(steps: Sequence[Transform]) -> bool:
    """Whether a step needs a pipeline with `enable_conditionals`."""
    return any(getattr(step, "conditional", False) for step in steps)


def _checked(step: Any, device: str) -> Transform:
    module = type(step).__module__
    if module.startswith(_DALI):
        if step.device != device:
            raise TypeError(
                f"transforms: {step!r} has device={step.device!r}, but the images are on the "
                f"{device}: make it with device={device!r}"
            )
        return Operator(step)
    if not callable(step) or isinstance(step, type) or module.startswith("torchvision."):
        raise TypeError(
            f"transforms: {step!r} is not a function of a DataNode; take one of "
            "dali_storage.loaders.transforms"
        )
    return step  # type: ignore[no-any-return]


def _in_pixels(steps: Sequence[Transform]) -> tuple[Transform, ...]:
    """The steps without the normalisation; colours of later steps are converted to pixels."""
    result: list[Transform] = []
    normalize = None
    for step in steps:
        if isinstance(step, Normalize):
            normalize = step
        elif normalize and isinstance(step, (Cutout, RandomErasing)):
            result.append(replace(step, fill=normalize.pixels(step.fill)))
        else:
            result.append(step)
    return tuple(result)
