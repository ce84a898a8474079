"""Conversion of a list of transforms to the steps of a pipeline: seeds, layouts, fused steps."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from nvidia.dali import fn, types

from ...dali.compat import AS_STORED
from ..transforms import DataNode, Flip, Layout, Normalize, PadCrop, RandomResizedCrop, Transform
from .settings import Dtype

Steps: TypeAlias = tuple[Any, ...]

_TYPES = {"float32": types.FLOAT, "float16": types.FLOAT16, "uint8": types.UINT8}


@dataclass(frozen=True, slots=True)
class Finish:
    """A flip, a normalisation, and a change of layout and type, in one pass over the pixels."""

    flip: Flip | None = None
    normalize: Normalize | None = None
    layout: str = "HWC"
    dtype: Dtype = "float32"

    def __call__(self, images: DataNode) -> DataNode:
        return fn.crop_mirror_normalize(
            images,
            mirror=self.flip.draw() if self.flip else 0,
            dtype=_TYPES[self.dtype],
            output_layout=self.layout,
            **(self.normalize.scaled() if self.normalize else {}),
        )


def decode(
    encoded: DataNode, steps: Steps, device: str, hints: Mapping[str, Any]
) -> tuple[DataNode, Steps]:
    """The images of encoded files (uint8, HWC, RGB), and the remaining steps.

    As in Pillow, the orientation in EXIF data is ignored. If the first step is a random crop, only
    its part is decoded.
    """
    arguments = {"output_type": types.RGB, "device": "cpu", **AS_STORED}
    if device == "gpu":
        # Colours are upsampled as on the CPU.
        arguments |= {"device": "mixed", "jpeg_fancy_upsampling": True, **hints}
    if steps and isinstance(steps[0], RandomResizedCrop):
        crop = steps[0]
        part = fn.decoders.image_random_crop(encoded, **arguments, **crop.window())
        return crop.resize(part), steps[1:]
    return fn.decoders.image(encoded, **arguments), steps


def seeded(steps: Sequence[Transform], seed: int) -> Steps:
    """The steps; random ones without a seed get one, derived from `seed` and their number."""
    result: list[Transform] = []
    numbers = itertools.count()
    for step in steps:
        if hasattr(step, "seed"):
            derived = np.random.SeedSequence((seed, next(numbers))).generate_state(1)
            step = step if step.seed is not None else _with(step, seed=int(derived[0]))
        result.append(step)
    return tuple(result)


def fused(
    steps: Sequence[Transform],
    given: Layout,
    layout: Layout,
    dtype: Dtype,
    square: int | None = None,
) -> Steps:
    """The steps from uint8 images of the layout `given` to images of `layout` and `dtype`.

    `square`: the side of the given images, if all of them are squares of one size.
    """
    result: list[Transform] = []
    merged = _merged(steps)
    now: str = given
    kind: str | None = "uint8"  # None is unknown
    for place, step in enumerate(merged):
        if isinstance(step, Finish):
            kind = dtype if place == len(merged) - 1 else "float32"
            now, step = layout, _with(step, layout=layout, dtype=kind)
        elif hasattr(step, "layout"):
            first = {"square": square} if place == 0 and isinstance(step, PadCrop) else {}
            step = _with(step, layout=now, **first)
        elif not isinstance(step, Flip):
            if now == "CHW":
                result.append(partial(fn.transpose, perm=[1, 2, 0]))
            now, kind = "HWC", None
        result.append(step)
    if (now, kind) != (layout, dtype):
        result.append(Finish(layout=layout, dtype=dtype))
    return tuple(result)


def _merged(steps: Sequence[Transform]) -> Steps:
    """The steps, with neighbours merged into single operators of DALI."""
    result: list[Transform] = []
    for place, step in enumerate(steps):
        if isinstance(step, Normalize):
            flip: Any = result.pop() if result and isinstance(result[-1], Flip) else None
            result.append(Finish(flip, step))
        elif isinstance(step, Flip) and place == len(steps) - 1:
            result.append(Finish(step))
        else:
            result.append(step)
    return tuple(result)


def _with(step: Any, **changes: Any) -> Any:
    return replace(step, **changes) if is_dataclass(step) and not isinstance(step, type) else step
