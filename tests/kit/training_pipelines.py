"""Pipelines for the tests of `Loader` in training frameworks."""

from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from nvidia.dali import Pipeline, fn, pipeline_def, types

from dali_storage import readers

TRAIN, VALIDATION = 100, 83  # samples


def maker(
    jpegs: Path,
    samples: int,
    *,
    train: bool,
    batch_size: int = 8,
    layout: str = "CHW",
    side: int = 16,
    file: Callable[..., Any] = readers.file,
) -> Callable[..., Pipeline]:
    """The `make` of a `Loader`: batches of float pictures, and of their numbers as labels.

    The pictures for training are shuffled in every epoch and mirrored at random.
    """

    @pipeline_def(batch_size=batch_size, num_threads=1, device_id=None, enable_checkpointing=True)
    def define(shard_id: int, num_shards: int) -> Any:
        encoded, labels = file(
            files=[str(path) for path in islice(cycle(sorted(jpegs.rglob("*.jpg"))), samples)],
            labels=list(range(samples)),
            shuffle_after_epoch=train,
            pad_last_batch=True,
            shard_id=shard_id,
            num_shards=num_shards,
            name="Reader",
        )
        images = fn.resize(fn.decoders.image(encoded), size=(side, side))
        images = fn.crop_mirror_normalize(
            images,
            mirror=fn.random.coin_flip(seed=4) if train else 0,
            mean=[127.5] * 3,
            std=[64.0] * 3,
            dtype=types.FLOAT,
            output_layout=layout,
        )
        return images, fn.cast(fn.squeeze(labels, axes=0), dtype=types.INT64)

    def make(checkpoint: bytes | None = None, shard_id: int = 0, num_shards: int = 1) -> Pipeline:
        return define(shard_id, num_shards, checkpoint=checkpoint)

    return make
