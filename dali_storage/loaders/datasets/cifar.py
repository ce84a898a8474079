"""Loaders of CIFAR-10 and CIFAR-100."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import numpy as np
from nvidia.dali import fn

from ...contract import registry
from ...contract._types import PathLike
from ...contract.catalog import Catalog
from ...contract.ranges import Ranges
from ...contract.reader import Reader
from ...dali import add_reader
from ...dali.compat import SHUFFLE_BITS
from ...observing.meter import Meter
from ...order import OrderOptions
from ...readers.arguments import DataNode
from ...readers.plugs import batch_memory
from ...reading.opening import Opening
from ...samples.patterns import path_bytes
from ..loop.loader import Loader
from ..transforms.presets import CIFAR10_EVAL, CIFAR10_TRAIN, CIFAR100_EVAL, CIFAR100_TRAIN, Preset
from .cifar_files import CIFAR10, CIFAR100, Archive, CifarSplit, Records, find, naming
from .images import ImagePipeline
from .pickles import RECORD_BYTES
from .settings import Options, Settings, takes_options

_SHAPE = 3, 32, 32
_MEMORY = "memory"


@takes_options
def cifar10(root: PathLike, split: Literal["train", "test"], **options: Unpack[Options]) -> Loader:
    """The 50,000 or 10,000 images of CIFAR-10, with torchvision's pixels.

    The files are read when a pipeline is built. By default they stay in memory, 154 or 31 MB for
    each pipeline; batches are copied from memory, and later changes of the files go unnoticed. Any
    other backend reads the images of a batch from the files. A pickle may name
    nothing but the functions of NumPy that make arrays of bytes, so the files cannot run code.

    Args:
        root: the directory `cifar-10-batches-py` or `cifar-10-batches-bin`, or the directory above.
            If both are present, which hold the same images, the first is read.
        split: "train" or "test".
        **options: help(dali_storage.loaders.datasets.settings.Settings) explains them. The usual
            preset is `CIFAR10_TRAIN` or `CIFAR10_EVAL`. The default backend is memory; any other
            must read ranges, into host memory.

    Returns:
        A loader of batches `(images, labels)`: images of shape (N, 3, 32, 32), labels int64, (N,).
        `loader.classes` has the names of the labels. A sample has the name of its file.

    Raises:
        FileNotFoundError: the directory does not exist, or lacks files.
        ValueError: `root` is an archive, to be extracted first; a file is truncated, has wrong
            labels, or is a pickle of anything but CIFAR-10. Files of images are checked at the
            first use of the loader.
        ValueError, TypeError: an option is wrong.
    """
    return _loader(CIFAR10, root, split, Settings(**options), (CIFAR10_TRAIN, CIFAR10_EVAL))


@takes_options
def cifar100(root: PathLike, split: Literal["train", "test"], **options: Unpack[Options]) -> Loader:
    """The 50,000 or 10,000 images of CIFAR-100, with its 100 (fine) labels; else as `cifar10()`.

    `root` is the directory `cifar-100-python` or `cifar-100-binary`, or the directory above. The
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
    """The loader; `presets` are for training and for evaluation."""
    found = find(archives, os.fsdecode(path_bytes("root", root)), split)
    train = split == "train"
    for name in [*settings.about_samples, *settings.own_order]:
        raise ValueError(f"{name} is for images in files of their own; CIFAR's are in archives")
    return ImagePipeline(
        read=partial(_read, found),
        settings=replace(settings, backend=settings.backend or _MEMORY),
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
    backend: str | type[Reader],
    backend_options: Mapping[str, Any] | None,
    stall_after: float | None,
    **order: Any,
) -> tuple[DataNode, DataNode]:
    """Put records and labels into the current pipeline; for the arguments see `readers.file`."""
    options = dict(backend_options or {})
    reader = registry.configure(backend, options)
    names, root = list(map(os.fsencode, found.files)), os.fsencode(found.directory)
    files = Catalog.from_names(names, (), root)
    held = reader is registry.load(_MEMORY)
    if held and options:
        raise ValueError("backend_options must be empty for memory: the loader reads the files")
    records = [_records(found, path, held) for path in files.file_paths(np.arange(len(names)))]
    labels = np.concatenate([each.labels for each in records]).astype(np.int32)
    columns = ((each.starts, np.full(each.starts.shape, RECORD_BYTES)) for each in records)
    catalog = replace(files, labels=labels, ranges=Ranges.of_files(columns))
    if held:
        options["contents"] = [each.content for each in records]
    opening = Opening(
        find=lambda tree, remote: catalog,
        reader=reader,
        options=options,
        backend=registry.shown(backend),
        observe=partial(Meter, stall_after=stall_after),
        memory=batch_memory,
        order=OrderOptions(**order, shuffle_bits=SHUFFLE_BITS),
    )
    data, labels = add_reader(name, opening)
    return data, labels


def _records(found: CifarSplit, path: bytes, held: bool) -> Records:
    with open(path, "rb") as file, naming(os.fsdecode(path)):
        records = found.archive.records(file.read())
        wrong = (records.labels < 0) | (records.labels >= len(found.classes))
        for record in np.flatnonzero(wrong)[:1].tolist():
            has = f"record {record} has the label {records.labels[record]}"
            raise ValueError(f"{has}, but there are {len(found.classes)} classes")
        if records.moved and not held:
            what = "its images are in Fortran's order, so an image is not a range of the file"
            raise ValueError(f"{what}; leave out backend=, because memory can read such files")
    return records
