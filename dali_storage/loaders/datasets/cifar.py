"""Loaders of CIFAR-10 and CIFAR-100."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn

from ...contract import registry
from ...contract._types import PathLike
from ...contract.catalog import Catalog, CatalogBuilder
from ...contract.reader import Reader
from ...dali import DataNode, add_reader
from ...order import OrderOptions
from ...reading.opening import Opening
from ...samples.patterns import path_bytes
from ..loop.loader import Loader
from ..transforms.presets import CIFAR10_EVAL, CIFAR10_TRAIN, CIFAR100_EVAL, CIFAR100_TRAIN, Preset
from .cifar_files import CIFAR10, CIFAR100, Archive, CifarSplit, find, naming
from .images import ImagePipeline
from .in_memory import RecordsReader, read_whole
from .pickles import RECORD_BYTES
from .settings import Options, Settings, takes_options

_SHAPE = 3, 32, 32


@takes_options
def cifar10(root: PathLike, split: Literal["train", "test"], **options: Unpack[Options]) -> Loader:
    """The 50,000 or 10,000 images of CIFAR-10, with torchvision's pixels.

    The files are read whole when a pipeline is built, by the backend; then they stay in memory, 154
    or 31 MB in each process, and batches are copied out of it. Later changes of the files are not
    noticed. They are never unpickled, so they cannot run code.

    Args:
        root: the directory `cifar-10-batches-py` or `cifar-10-batches-bin`, or the one above. If
            it has both, which hold the same images, the first is read.
        split: "train" or "test".
        **options: help(dali_storage.loaders.datasets.settings.Settings) explains them. The usual
            preset is `CIFAR10_TRAIN` or `CIFAR10_EVAL`. The backend must read into host memory.

    Returns:
        A loader of batches `(images, labels)`: images of shape (N, 3, 32, 32), labels int64, (N,).
        `loader.classes` are the names of the labels. Samples are named `data_batch_3#0017`.

    Raises:
        FileNotFoundError: there is no such directory, or files are missing in it.
        ValueError: `root` is an archive, which has to be extracted first; a file is truncated, has
            wrong labels, or is a pickle of anything but CIFAR-10. Files of images are checked at
            the first use of the loader.
        ValueError, TypeError: an option is wrong.
    """
    return _loader(CIFAR10, root, split, Settings(**options), (CIFAR10_TRAIN, CIFAR10_EVAL))


@takes_options
def cifar100(root: PathLike, split: Literal["train", "test"], **options: Unpack[Options]) -> Loader:
    """The 50,000 or 10,000 images of CIFAR-100, with its 100 (fine) labels; else as `cifar10()`.

    `root` is the directory `cifar-100-python` or `cifar-100-binary`, or the one above. The
    usual presets are `CIFAR100_TRAIN` and `CIFAR100_EVAL`.
    """
    return _loader(CIFAR100, root, split, Settings(**options), (CIFAR100_TRAIN, CIFAR100_EVAL))


def _loader(
    archives: Sequence[Archive],
    root: PathLike,
    split: str,
    settings: Settings,
    presets: tuple[Preset, Preset],
) -> Loader:
    """The loader; `presets` are those for training and for evaluation."""
    found = find(archives, os.fsdecode(path_bytes("root", root)), split)
    train = split == "train"
    return ImagePipeline(
        read=partial(_read, found),
        settings=settings,
        train=train,
        preset=presets[0 if train else 1],
        decode=partial(fn.reshape, shape=_SHAPE, layout="CHW"),
        square=_SHAPE[-1],
    ).loader(
        classes=lambda: found.classes,
        describe=lambda: f"{split} of {found.directory!r}, {len(found.classes)} classes",
    )


def _read(
    found: CifarSplit,
    *,
    name: str,
    backend: str | type[Reader] | None,
    backend_options: Mapping[str, Any] | None,
    **order: Any,
) -> tuple[DataNode, DataNode]:
    """The records and labels in the current pipeline; the arguments are those of `readers.file`."""
    options = dict(backend_options or {})
    names = list(map(os.fsencode, found.files))
    files = Catalog.from_names(names, [0] * len(names), os.fsencode(found.directory))
    opening = _CifarOpening(
        find=lambda tree, remote: files,
        reader=registry.configure(registry.choose(backend, ()), options),
        options=options,
        order=OrderOptions(**order),
        found=found,
    )
    data, labels = add_reader(name, opening)
    return data, labels


@dataclass(frozen=True, slots=True, kw_only=True)
class _CifarOpening(Opening):
    """Has the backend read the files whole; the samples are the records in them."""

    found: CifarSplit

    def open(self) -> tuple[Catalog, RecordsReader]:
        """The catalog of the records, and a reader of these."""
        files = self.find(None, None)
        memory, places = read_whole(files, partial(self.reader, **self.options))
        builder, starts = CatalogBuilder(), []
        for file, place in enumerate(places):
            with naming(os.fsdecode(files.path(file))):
                first, labels = self.found.archive.records(memory[place])
                _require_labels(labels, len(self.found.classes))
            digits = len(str(labels.size - 1))
            numbers = [b"#%0*d" % (digits, record) for record in range(labels.size)]
            builder.extend(numbers, labels.tolist(), prefix=files.name(file))
            starts.append(place.start + first)
        catalog = builder.build(files.root)
        return catalog, RecordsReader(
            catalog, memory=memory, starts=np.concatenate(starts), size_bytes=RECORD_BYTES
        )


def _require_labels(labels: NDArray[np.integer], classes: int) -> None:
    for record in np.flatnonzero(labels >= classes)[:1].tolist():
        raise ValueError(
            f"record {record} has the label {labels[record]}, and there are {classes} classes"
        )
