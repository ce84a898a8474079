"""ImageNet: the images of the challenge ILSVRC2012."""

from __future__ import annotations

import os
from functools import partial
from typing import Unpack, get_args

from ... import readers
from ...contract._types import PathLike
from ...samples.patterns import path_bytes
from ..loop.loader import Loader
from ..transforms import presets
from .ilsvrc import ImageNetSplit, Split, find
from .images import ImagePipeline
from .settings import Options, Settings, takes_options

# NVIDIA's values for the largest picture (DALI's ResNet-50 example for PyTorch), so that the GPU's
# decoder allocates memory only once.
_LARGEST = {"preallocate_width_hint": 5980, "preallocate_height_hint": 6430}
_CLASSES = 1000
_IMAGES = {"train": 1_281_167, "val": 50_000}


@takes_options
def imagenet(root: PathLike, split: Split, **options: Unpack[Options]) -> Loader:
    """Batches `(images, labels)` of ImageNet's training or validation images.

    These layouts are known, so no files need to be moved:

    * `root/train/n01440764/*.JPEG` and `root/val/n01440764/*.JPEG`;
    * the same under `root/ILSVRC/Data/CLS-LOC`, as in Kaggle's archive;
    * `val/*.JPEG` without class directories, labelled by `LOC_val_solution.csv` (Kaggle), or by
      `imagenet_2012_validation_synset_labels.txt` or `synset_labels.txt` (TensorFlow; one synset
      per line, in the order of the images' names). This file is searched in `val`, in the
      directory above `val`, and in `root`.

    A label is the index of the synset among the sorted synsets of `train`, as in torchvision;
    without `train`, of `val`. Fewer classes or images than ILSVRC's 1,000, 1,281,167 and 50,000 are
    fine; `repr(loader)` shows any difference.

    The pixels are torchvision's, by default with `presets.IMAGENET_TRAIN` or `IMAGENET_EVAL`.

    Args:
        root: the directory.
        split: "train" or "val".
        **options: help(dali_storage.loaders.datasets.settings.Settings) explains them.

    Returns:
        The loader, as `image_folder()`; its `classes` are the synsets.

    Raises:
        ValueError: as `image_folder()`; or the synsets of `val` and `train` differ, a directory is
            not a synset, or a label is missing.
        OSError: `split` or a file of labels is missing or cannot be read.
        TypeError, BackendUnavailable: as `image_folder()`.
    """
    settings = Settings(**options)
    if split not in get_args(Split):
        raise ValueError(f"imagenet(): split must be 'train' or 'val', not {split!r}")
    found = find(os.fsdecode(path_bytes("root", root)), split)
    return ImagePipeline(
        read=partial(readers.file, **found.arguments),
        settings=settings,
        train=split == "train",
        preset=presets.IMAGENET_TRAIN if split == "train" else presets.IMAGENET_EVAL,
        check=found.check,
        hints=_LARGEST,
    ).loader(classes=lambda: found.classes, describe=lambda: _describe(split, found))


def _describe(split: Split, found: ImageNetSplit) -> str:
    """The numbers of classes and images, and any difference from ILSVRC's."""
    counts = (len(found.classes), _CLASSES, "classes"), (found.images, _IMAGES[split], "images")
    parts = [
        f"{count:,} {what}" + f" (ILSVRC: {expected:,})" * (count != expected)
        for count, expected, what in counts
        if count is not None
    ]
    return f"imagenet {split}: {', '.join(parts)}"
