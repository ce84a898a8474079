"""The common options of all loaders of images, and the resulting transforms."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import NoneType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    ParamSpec,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    get_args,
)

from ...contract._types import PathLike
from ...contract.faces import explained
from ...contract.options import Option, stall_seconds
from ...contract.reader import Reader
from ...order.epochs import LastBatch
from ...ranks import Shard
from ..loop.tensors import To
from ..transforms import Cutout, DataNode, Layout, Normalize, RandomErasing, Transform
from ..transforms.presets import Preset

Device: TypeAlias = Literal["gpu", "cpu"]
Dtype: TypeAlias = Literal["float32", "float16", "uint8"]
Shuffle: TypeAlias = Literal["epoch", "window"]

_DALI = "nvidia.dali.experimental.torchvision"
_POSITIVE, _NATURAL = Option(range(1, 2**31)), Option(range(2**31))
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Options(TypedDict, total=False):
    """The fields of `Settings`, as keyword arguments."""

    batch_size: Required[int]
    preset: Preset | None
    transforms: Sequence[Transform] | None
    shuffle: Shuffle | bool | None
    weights: Any
    epoch_size: int | str | None
    order: Any
    last_batch: LastBatch | None
    shard: Shard | None
    device: Device
    device_id: int | None
    num_threads: int
    prefetch_queue_depth: int
    seed: int
    dtype: Dtype | None
    layout: Layout
    to: To
    backend: str | type[Reader] | None
    backend_options: Mapping[str, Any] | None
    on_error: Literal["raise", "replace"]
    check: bool
    max_replaced: int | None
    bad_samples: PathLike | None
    exclude: PathLike | None
    receipt: Literal["samples", "bytes", "content"] | None
    stall_after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The common options of all loaders of images.

    Attributes:
        batch_size: number of images in a batch.
        preset: the transforms of the images. None: the usual preset for this data set.
        transforms: replaces the preset: a list of transforms of this package, functions of a
            DataNode (HWC, RGB; their results, too, except for the last one), and operators of
            `nvidia.dali.experimental.torchvision`.
        shuffle: "epoch" or True: reshuffle the whole list before every epoch. "window": draw
            samples from a moving window, which shifts them by only a few hundred places. False:
            keep the order. None: "epoch" for training, else False.
        weights: the frequencies of images, by class or one by one: "balanced", "sqrt", a number for
            each label, or for each image; see `readers.file`. Excludes shuffle and order.
        epoch_size: number of images in an epoch; see `readers.file`.
        order: the indices of an epoch's images, for all ranks; see `readers.file`.
        last_batch: treatment of an incomplete batch; see `Loader`. None: "drop" for training, else
            "partial".
        shard: the part of the data set for this process. None: `Shard.here()` at the first use of
            the loader.
        device: the device that decodes the images and holds the batches.
        device_id: the number of the GPU. None: the shard's `local_rank`.
        num_threads: DALI's threads in this process.
        prefetch_queue_depth: number of batches that DALI prepares ahead. Each needs memory: 256
            images of 3x224x224 float32 are 154 MB.
        seed: seed of the order, the same on all ranks, and of the random transforms, which differ
            from rank to rank.
        dtype: type of the pixels. "uint8": from 0 to 255 and not normalised. None: "float32" if the
            images are normalised, else "uint8".
        layout: layout of the images: "CHW" or "HWC".
        to: the framework of the tensors: "torch", "jax", "numpy" or a callable; see `Loader`.
        backend: the backend that reads the storage; see `readers.file`.
        backend_options: keyword arguments of the backend.
        on_error: "replace": deliver another image in place of a bad one; see `readers.file`, as for
            the next four. If an image cannot be decoded, the batch is remade, and random transforms
            have advanced.
        check, max_replaced, bad_samples, exclude: see `readers.file`.
        receipt: "samples" or "bytes", for `Loader.receipt()`; see `readers.file`.
        stall_after: seconds after which a reader that hangs is told of; see `readers.file`.

    Raises:
        ValueError, TypeError: the named option has a wrong value.
    """

    batch_size: Annotated[int, _POSITIVE]
    preset: Preset | None = None
    transforms: Sequence[Transform] | None = None
    shuffle: Shuffle | bool | None = None
    weights: Any = None
    epoch_size: int | str | None = None
    order: Any = None
    last_batch: LastBatch | None = None
    shard: Shard | None = None
    device: Annotated[Device, Option(get_args(Device))] = "gpu"
    device_id: Annotated[int | None, _NATURAL] = None
    num_threads: Annotated[int, _POSITIVE] = 4
    prefetch_queue_depth: Annotated[int, _POSITIVE] = 2
    seed: Annotated[int, _NATURAL] = 0
    dtype: Annotated[Dtype | None, Option(get_args(Dtype))] = None
    layout: Annotated[Layout, Option(get_args(Layout))] = "CHW"
    to: To = "torch"
    backend: str | type[Reader] | None = None
    backend_options: Mapping[str, Any] | None = None
    on_error: Literal["raise", "replace"] = "raise"
    check: bool = False
    max_replaced: int | None = None
    bad_samples: PathLike | None = None
    exclude: PathLike | None = None
    receipt: Literal["samples", "bytes", "content"] | None = None
    stall_after: float | None = 60.0

    def __post_init__(self) -> None:
        for it in fields(self):
            for option in getattr(it.type, "__metadata__", ()):
                option = replace(option, backend="loaders", name=it.name, default=it.default)
                option.check(getattr(self, it.name))
        if self.shuffle not in (choices := (*get_args(Shuffle), True, False, None)):
            raise ValueError(f"loaders: shuffle must be one of {choices}, not {self.shuffle!r}")
        if self.shuffle is not None and self.own_order:
            name = next(iter(self.own_order))
            raise ValueError(
                f"loaders: shuffle and {name} cannot both be given: {name} sets the order"
            )
        if self.preset is not None and self.transforms is not None:
            raise ValueError(
                "loaders: preset and transforms cannot both be given; transforms may include a "
                "preset's: [*preset.transforms, ...]"
            )
        if not isinstance(self.preset, (Preset, NoneType)):
            raise TypeError(f"loaders: preset must be a Preset or None, not {self.preset!r}")
        if self.about_samples.keys() - {"receipt"}:
            with explained():
                from ...bad_samples.arguments import bad_sample_options
            bad_sample_options(self.about_samples, "cpu")
        stall_seconds(self.stall_after)

    @property
    def about_samples(self) -> dict[str, Any]:
        """The arguments of `readers.file` about bad samples and receipts, without defaults."""
        names = "on_error", "check", "max_replaced", "bad_samples", "exclude", "receipt"
        given = {name: getattr(self, name) for name in names}
        return {name: it for name, it in given.items() if it not in ("raise", False, None)}

    @property
    def own_order(self) -> dict[str, Any]:
        """The reader's arguments for an order other than DALI's."""
        given = {name: getattr(self, name) for name in ("weights", "epoch_size", "order")}
        return {name: value for name, value in given.items() if value is not None}


def takes_options(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show the options of a function with `**options` in its signature, and refuse all others."""
    signature = inspect.signature(function)
    *own, _ = signature.parameters.values()  # the last is **options
    common = inspect.signature(Settings).parameters.values()
    signature = signature.replace(parameters=[*own, *common])

    @functools.wraps(function)
    def checked(*arguments: _P.args, **options: _P.kwargs) -> _R:
        try:
            signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        return function(*arguments, **options)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    return checked


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of `nvidia.dali.experimental.torchvision`, as a function of a DataNode.

    The module's own pipelines use the same private method; DALI 2.4 has no public one.
    """

    operator: Any
    conditional: ClassVar[bool] = True

    def __call__(self, images: DataNode) -> DataNode:
        return self.operator._invoke(images)


def chosen_transforms(settings: Settings, usual: Preset) -> tuple[Transform, ...]:
    """The transforms of the images: the user's transforms or preset, else the usual preset.

    Raises:
        ValueError: uint8 is requested, but the user's transforms normalise.
        TypeError: an item is not a transform, or is for another device.
    """
    given = settings.transforms
    wanted = (settings.preset or usual).transforms if given is None else given
    steps = tuple(_checked(step, settings.device) for step in wanted)
    if settings.dtype != "uint8" or not normalizes(steps):
        return steps
    if given is not None:
        raise ValueError(
            "dtype='uint8' needs pixels from 0 to 255: leave Normalize out of transforms"
        )
    return _in_pixels(steps)


def normalizes(steps: Sequence[Transform]) -> bool:
    """True if the result is normalised."""
    return any(isinstance(step, Normalize) for step in steps)


def _checked(step: Any, device: str) -> Transform:
    module = type(step).__module__
    if module.startswith(_DALI):
        if step.device != device:
            raise TypeError(
                f"transforms: {step!r} has device={step.device!r}, but the images are on the "
                f"{device}: create it with device={device!r}"
            )
        return Operator(step)
    if not callable(step) or isinstance(step, type) or module.startswith("torchvision."):
        raise TypeError(
            f"transforms: {step!r} is not a function of a DataNode; use "
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
