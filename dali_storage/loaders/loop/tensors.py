"""Outputs of a pipeline as tensors of a framework."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from ...contract.errors import BackendUnavailable

Convert: TypeAlias = Callable[[Any], Any]
To: TypeAlias = Literal["torch", "jax", "numpy"] | Convert

_FRAMEWORKS = "torch", "jax", "numpy"


def converter(to: To) -> Convert:
    """Import a framework, and return its function from objects with `__dlpack__()` to tensors.

    Raises:
        ValueError: the framework is unknown.
        BackendUnavailable: the framework is not installed; the remedy is the pip command.
    """
    if callable(to):
        return to
    if to not in _FRAMEWORKS:
        raise ValueError(f"to must be {', '.join(map(repr, _FRAMEWORKS))} or callable, not {to!r}")
    try:
        if to == "torch":
            import torch

            return torch.from_dlpack  # type: ignore[no-any-return]
        if to == "jax":
            import jax

            return jax.dlpack.from_dlpack  # type: ignore[no-any-return]
        return np.from_dlpack
    except ModuleNotFoundError as error:
        if error.name != to:
            raise
        reason = f"to={to!r} needs the package {to}, which is not installed"
        raise BackendUnavailable(reason, f"pip install {to}, or use to='numpy'") from None


def convert(outputs: Sequence[Any], to: Convert) -> tuple[Any, ...]:
    """Tensors of a pipeline's outputs; they share memory that DALI does not reuse.

    Raises:
        ValueError: the samples of an output differ in shape; names the output.
    """
    try:
        return tuple([to(output.as_tensor()) for output in outputs])
    except RuntimeError as error:
        for number, output in enumerate(outputs):
            shapes = sorted(set(output.shape()))
            if len(shapes) > 1:
                raise ValueError(
                    f"output {number} of the pipeline has samples of different shapes, "
                    f"such as {shapes[0]} and {shapes[-1]}, but a batch is one tensor: resize or "
                    "crop samples to one shape (fn.resize, fn.crop), or pad them (fn.pad)"
                ) from error
        raise
