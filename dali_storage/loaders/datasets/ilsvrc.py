"""Images and labels of ILSVRC2012 in their usual layouts."""

from __future__ import annotations

import csv
import errno
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...contract.catalog import Catalog
from ...samples import discovery
from ...samples.patterns import compile_filters
from .folders import class_names, require_classes, require_images, shown

Split = Literal["train", "val"]

KAGGLE = "ILSVRC/Data/CLS-LOC"
"""The directory of the images in the archive of Kaggle's competition."""

SOLUTION = "LOC_val_solution.csv"
"""Kaggle's labels of the validation images: a header, then `ImageId,PredictionString`; the latter
begins with the synset."""

SYNSET_LISTS = ("imagenet_2012_validation_synset_labels.txt", "synset_labels.txt")
"""TensorFlow's labels of the validation images: one synset per line, in the order of the names.
Both names are in use (tensorflow/models, research/slim; tensorflow/tpu)."""

_SYNSET = re.compile(r"n\d{8}")


@dataclass(slots=True)
class ImageNetSplit:
    """The images of a split.

    Attributes:
        classes: the synsets, in the order of their labels.
        arguments: arguments of `readers.file`.
        images: number of images; None: not known yet.
    """

    classes: tuple[str, ...]
    arguments: dict[str, Any]
    images: int | None = None

    def check(self, catalog: Catalog) -> None:
        """Count the images; refuse a class directory without any."""
        self.images = len(catalog)
        if "files" not in self.arguments:
            require_images(self.classes, catalog)


def find(root: str, split: Split) -> ImageNetSplit:
    """The images of a split and their labels; `imagenet()` describes layouts and errors."""
    base = _base(root, split)
    folder, train = os.path.join(base, split), os.path.join(base, "train")
    synsets = _synsets(train) if os.path.isdir(train) else None
    if split == "train" or discovery.Directory(folder).directories():
        classes = _synsets(folder)
        if loose := _images(folder):
            raise ValueError(
                f"{folder!r} has class directories, and {len(loose):,} images outside, which would "
                f"not be read; move or remove {shown([os.fsdecode(name) for name in loose])}"
            )
        if synsets is not None:
            what = f"class directories of {folder!r}, compared with train"
            require_classes(classes, synsets, what)
        return ImageNetSplit(classes, {"file_root": folder})
    return _find_flat(folder, [folder, base, root], synsets)


def _base(root: str, split: Split) -> str:
    """The directory of the splits."""
    for base in (root, os.path.join(root, KAGGLE)):
        if os.path.isdir(os.path.join(base, split)):
            return base
    os.listdir(root)  # raises if root itself is wrong
    what = f"there is neither {split} nor {KAGGLE}/{split} in this directory"
    raise FileNotFoundError(errno.ENOENT, what, root)


def _synsets(folder: str) -> tuple[str, ...]:
    """The class directories of a split, sorted."""
    names = class_names(folder)
    if other := [name for name in names if not _SYNSET.fullmatch(name)]:
        raise ValueError(
            f"{folder!r} has directories that are not synsets (n and eight digits): "
            f"{shown(other)}. They would count as classes: move them away, or use image_folder()"
        )
    return names


def _images(folder: str) -> list[bytes]:
    """The sorted names of the images directly in a directory."""
    choose = compile_filters("", discovery.DEFAULT_FILE_FILTERS, case_sensitive=False)
    return sorted(choose(discovery.Directory(folder).files(b".")))


def _find_flat(
    folder: str, places: Sequence[str], synsets: tuple[str, ...] | None
) -> ImageNetSplit:
    """The images of a split without class directories."""
    images = _images(folder)
    if not images:
        raise ValueError(f"{folder!r} has neither class directories nor images")
    path, synset_of = _read_labels(images, places)
    classes = tuple(sorted(set(synset_of))) if synsets is None else synsets
    labels = {synset: label for label, synset in enumerate(classes)}
    if extra := sorted(set(synset_of) - labels.keys()):
        raise ValueError(f"{path!r} has synsets that train does not have: {shown(extra)}")
    numbers = [labels[synset] for synset in synset_of]
    arguments = {"file_root": folder, "files": images, "labels": numbers}
    return ImageNetSplit(classes, arguments, len(images))


def _read_labels(images: Sequence[bytes], places: Sequence[str]) -> tuple[str, list[str]]:
    """The file that labels the images, and their synsets."""
    for name, read in _LABELS.items():
        for place in places:
            path = os.path.join(place, name)
            if os.path.isfile(path):
                # Synsets and names are ASCII; other text then fails the check for synsets.
                with open(path, encoding="ascii", errors="replace", newline="") as lines:
                    synsets = read(path, lines, images)
                if wrong := [each for each in synsets if not _SYNSET.fullmatch(each)]:
                    raise ValueError(f"{path!r}: expected synsets, not {shown(wrong)}")
                return path, synsets
    raise FileNotFoundError(
        errno.ENOENT,
        f"no class directories, and no file of labels: expected {' or '.join(_LABELS)} here, or in "
        f"{' or '.join(map(repr, places[1:]))}",
        places[0],
    )


def _read_solution(path: str, lines: Iterable[str], images: Sequence[bytes]) -> list[str]:
    synsets = {
        row["ImageId"]: (row["PredictionString"] or "").partition(" ")[0]
        for row in csv.DictReader(lines)
        if row.keys() >= {"ImageId", "PredictionString"}
    }
    names = [os.path.splitext(os.fsdecode(name))[0] for name in images]
    if missing := [name for name in names if name not in synsets]:
        raise ValueError(
            f"{path!r} has no line `ImageId,PredictionString` for {len(missing):,} of the images: "
            f"{shown(missing)}"
        )
    return [synsets[name] for name in names]


def _read_list(path: str, lines: Iterable[str], images: Sequence[bytes]) -> list[str]:
    synsets = [line.strip() for line in lines if line.strip()]
    if len(synsets) != len(images):
        raise ValueError(
            f"{path!r} has {len(synsets):,} lines, but there are {len(images):,} images: it must "
            "have one line per image, in the order of their names"
        )
    return synsets


_LABELS: dict[str, Callable[[str, Iterable[str], Sequence[bytes]], list[str]]] = {
    SOLUTION: _read_solution,
    **dict.fromkeys(SYNSET_LISTS, _read_list),
}
