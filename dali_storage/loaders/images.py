"""Pipelines of images, and the loaders of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline, pipeline_def

from ..catalog import Catalog
from . import compose
from .loader import Loader
from .presets import Preset
from .settings import Settings
from .shard import Shard
from .transforms import DataNode, Layout, Normalize, RandomResizedCrop, Transform

READER = "Reader"
"""The name of the reader in the pipelines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePipeline:
    """Builds pipelines `(images, labels)`; what a `Loader` takes.

    Attributes:
        read: puts a reader into the current pipeline and returns its samples and labels. Its
            arguments are `name`, `num_shards`, `shard_id`, `stick_to_shard`, `pad_last_batch`,
            `seed`, `random_shuffle`, `shuffle_after_epoch`, `shuffle_after_epoch_seed`, `backend`
            and `backend_options`, as those of `readers.file`.
        settings: the options of the user.
        train: whether the images are for training; this decides what None means in the settings.
        preset: what happens to the images if the settings do not say it.
        decode: makes images, uint8 CHW with their layout, of the samples, which are on the
            settings' device. None: the samples are encoded images (JPEG and so on).
        check: raises if something is wrong with the samples; called when a pipeline is built.
        hints: further arguments of DALI's decoder on a GPU.
    """

    read: Callable[..., tuple[DataNode, DataNode]]
    settings: Settings
    train: bool
    preset: Preset
    decode: Callable[[DataNode], DataNode] | None = None
    check: Callable[[Catalog], None] | None = None
    hints: Mapping[str, Any] = field(default_factory=dict)

    def loader(self, classes: Callable[[], tuple[str, ...]] | None = None) -> Loader:
        """The loader of these images."""
        settings = self.settings
        last_batch = settings.last_batch or ("drop" if self.train else "partial")
        return Loader(
            self,
            reader_name=READER,
            last_batch=last_batch,
            to=settings.to,
            shard=settings.shard,
            classes=classes,
        )

    def __call__(
        self, *, checkpoint: bytes | None = None, shard_id: int = 0, num_shards: int = 1
    ) -> Pipeline:
        """A pipeline of one shard; it is built when it first runs."""
        settings = self.settings
        device_id = None
        if settings.device == "gpu":
            device_id = settings.device_id
            if device_id is None:
                device_id = (settings.shard or Shard.here()).local_rank
        steps = compose.seeded(self._transforms(), settings.seed + shard_id)
        make = pipeline_def(self._define, enable_conditionals=False)
        return make(
            steps,
            shard_id,
            num_shards,
            batch_size=settings.batch_size,
            num_threads=settings.num_threads,
            device_id=device_id,
            seed=settings.seed + shard_id,
            prefetch_queue_depth=settings.prefetch_queue_depth,
            exec_dynamic=True,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )

    def _define(
        self, steps: compose.Steps, shard_id: int, num_shards: int
    ) -> tuple[DataNode, DataNode]:
        samples, labels = self.read(**self._order(shard_id, num_shards))
        settings = self.settings
        if self.decode is None:
            first = steps[0] if steps else None
            images = compose.decode(samples, first, settings.device, self.hints)
            steps = steps[isinstance(first, RandomResizedCrop) :]
        else:
            images = self.decode(samples.gpu() if settings.device == "gpu" else samples)
        given: Layout = "HWC" if self.decode is None else "CHW"
        dtype = settings.dtype or (
            "float32" if any(isinstance(s, Normalize) for s in steps) else "uint8"
        )
        for step in compose.fused(steps, given, settings.layout, dtype):
            images = step(images)
        return images, fn.cast(fn.squeeze(labels, axes=[0]), dtype=types.INT64)

    def _transforms(self) -> Sequence[Transform]:
        if self.settings.transforms is not None:
            return self.settings.transforms
        return (self.settings.preset or self.preset).transforms

    def _order(self, shard_id: int, num_shards: int) -> dict[str, Any]:
        """The arguments of the reader."""
        settings = self.settings
        shuffle = self.train if settings.shuffle is None else settings.shuffle
        return {
            "name": READER,
            "num_shards": num_shards,
            "shard_id": shard_id,
            "stick_to_shard": not self.train,
            "pad_last_batch": True,
            "seed": settings.seed,
            "random_shuffle": shuffle == "window",
            "shuffle_after_epoch": shuffle in (True, "epoch"),
            "shuffle_after_epoch_seed": settings.seed,
            "backend": settings.backend,
            "backend_options": settings.backend_options,
        }
