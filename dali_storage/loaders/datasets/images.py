"""Pipelines of images, and their loaders."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.backend import GetCUDADeviceCount
from nvidia.dali.pipeline import Pipeline, pipeline_def

from ...contract import registry
from ...contract.catalog import Catalog
from ...contract.errors import BackendUnavailable
from ...dali.queries import catalog
from ...ranks import Shard
from ..loop.loader import Loader
from ..transforms import DataNode, Layout
from ..transforms.presets import Preset
from . import compose
from .settings import Settings, chosen_transforms, normalizes

READER = "Reader"
"""The name of the reader in the pipelines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePipeline:
    """The builder of pipelines `(images, labels)` for a `Loader`.

    Attributes:
        read: puts a reader into the current pipeline and returns its samples and labels. Its
            arguments are `name`, `num_shards`, `shard_id`, `stick_to_shard`, `pad_last_batch`,
            `seed`, `random_shuffle`, `shuffle_after_epoch`, `shuffle_after_epoch_seed`, `backend`,
            `backend_options` and the ones about bad samples, as in `readers.file`.
        settings: the options of the user.
        train: the images are for training; decides the meaning of None in the settings.
        preset: the default for transforms missing in the settings.
        decode: converts samples on the settings' device to images, uint8 CHW with their layout.
            None: the samples are encoded images (JPEG and so on).
        square: the side of the decoded images, if all of them are squares of one size.
        check: raises if something is wrong with the samples; called when a pipeline is built.
        hints: further arguments of DALI's decoder on a GPU.
    """

    read: Callable[..., tuple[DataNode, DataNode]]
    settings: Settings
    train: bool
    preset: Preset
    decode: Callable[[DataNode], DataNode] | None = None
    square: int | None = None
    check: Callable[[Catalog], None] | None = None
    hints: Mapping[str, Any] = field(default_factory=dict)

    def loader(
        self,
        classes: Callable[[], tuple[str, ...]] | None = None,
        describe: Callable[[], str] | None = None,
        roots: Sequence[bytes] = (),
    ) -> Loader:
        """The loader of these images; for the first arguments see `Loader`.

        The default backend depends on `roots`, the paths and URLs to read.

        Raises:
            ValueError, TypeError: a setting cannot be used.
            BackendUnavailable: device="gpu", and there is no GPU; or the backend lacks a package.
        """
        settings = self.settings
        chosen_transforms(settings, self.preset)
        registry.configure(registry.choose(settings.backend, roots), settings.backend_options or {})
        if settings.device == "gpu":
            _require_gpu(settings.device_id or 0)
        return Loader(
            self,
            reader_name=READER,
            last_batch=settings.last_batch or ("drop" if self.train else "partial"),
            to=settings.to,
            shard=settings.shard,
            classes=classes,
            describe=describe,
        )

    def __call__(
        self, *, checkpoint: bytes | None = None, shard_id: int = 0, num_shards: int = 1
    ) -> Pipeline:
        """A pipeline of one shard."""
        settings = self.settings
        seed = settings.seed + shard_id
        steps = compose.seeded(chosen_transforms(settings, self.preset), seed)
        conditional = any(getattr(step, "conditional", False) for step in steps)
        define = pipeline_def(self._define, enable_conditionals=conditional)
        pipeline = define(
            steps,
            self._order(shard_id, num_shards),
            batch_size=settings.batch_size,
            num_threads=settings.num_threads,
            device_id=self._device_id(),
            seed=seed,
            prefetch_queue_depth=settings.prefetch_queue_depth,
            exec_dynamic=True,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        if self.check:
            self.check(catalog(pipeline, READER))
        return pipeline

    def _define(self, steps: compose.Steps, order: dict[str, Any]) -> tuple[DataNode, DataNode]:
        samples, labels = self.read(**order)
        labels = fn.cast(fn.squeeze(labels, axes=[0]), dtype=types.INT64)
        settings, gpu = self.settings, self.settings.device == "gpu"
        dtype = settings.dtype or ("float32" if normalizes(steps) else "uint8")
        layout: Layout = "CHW"
        if self.decode is None:
            images, steps = compose.decode(samples, steps, settings.device, self.hints)
            layout = "HWC"
        else:
            images = self.decode(samples.gpu() if gpu else samples)
        for step in compose.fused(steps, layout, settings.layout, dtype, self.square):
            images = step(images)
        return images, labels.gpu() if gpu else labels

    def _device_id(self) -> int | None:
        """The number of the GPU; None on the CPU. Called late, when the shard is known."""
        settings = self.settings
        if settings.device == "cpu":
            return None
        if settings.device_id is not None:
            return _require_gpu(settings.device_id)
        return _require_gpu((settings.shard or Shard.here()).local_rank)

    def _order(self, shard_id: int, num_shards: int) -> dict[str, Any]:
        """The arguments of the reader."""
        settings = self.settings
        order = {
            "name": READER,
            "num_shards": num_shards,
            "shard_id": shard_id,
            "pad_last_batch": True,
            "seed": settings.seed,
            "backend": settings.backend,
            "backend_options": settings.backend_options,
            "stall_after": settings.stall_after,
            **settings.about_samples,
        }
        if settings.own_order:
            return order | settings.own_order
        shuffle = self.train if settings.shuffle is None else settings.shuffle
        anew = shuffle in (True, "epoch")
        return order | {
            "stick_to_shard": not (self.train or anew),
            "random_shuffle": shuffle == "window",
            "shuffle_after_epoch": anew,
            "shuffle_after_epoch_seed": settings.seed,
        }


def _require_gpu(number: int) -> int:
    """Return `number`, or raise if this GPU does not exist."""
    count = 0
    with suppress(RuntimeError):  # before 2.0, DALI raises without a driver
        count = GetCUDADeviceCount()
    if not count:
        raise BackendUnavailable(
            "device='gpu': CUDA finds no GPU here", "give device='cpu', or install NVIDIA's driver"
        )
    if number >= count:
        raise BackendUnavailable(
            f"device_id={number}: CUDA finds only {count} GPU(s)",
            "start one process per GPU on this machine, or give device_id",
        )
    return number
