"""The records in the published files of CIFAR-10 and CIFAR-100.

For the formats see https://www.cs.toronto.edu/~kriz/cifar.html.
"""

import contextlib
import errno
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ...contract._types import HostBuffer, IntArray
from .pickles import RECORD_BYTES, parse

_MOST_BYTES = 1 << 28  # of a file; the largest published has 155 MB


class Records(NamedTuple):
    """The n records of a file.

    Attributes:
        content: the bytes of the file; or the images one after another, if the file has the first
            pixels of all images, then the second ones, and so on (Fortran's order).
        starts: int64[n], the offsets of the records in `content`.
        labels: labels of the records.
        moved: `content` differs from the file.
    """

    content: HostBuffer
    starts: IntArray
    labels: NDArray[np.integer]
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Archive:
    """One of the published archives of a data set.

    Attributes:
        name: name of the archive.
        directory: name of the directory in the archive.
        splits: the files of each split, in the order of their records.
        names: the file with the names of the classes.
        classes: number of classes.
        records: finds the records in the bytes of a file.
        class_names: finds the names of the classes. Both raise `ValueError`.
    """

    name: str
    directory: str
    splits: Mapping[str, Sequence[str]]
    names: str
    classes: int
    records: Callable[[bytes], Records]
    class_names: Callable[[bytes], Sequence[str]]


@dataclass(frozen=True, slots=True)
class CifarSplit:
    """A split of a data set on disk.

    Attributes:
        archive: the source of the files.
        directory: the directory of the files.
        files: their names, in the order of their records.
        classes: the names of the labels.
    """

    archive: Archive
    directory: str
    files: Sequence[str]
    classes: tuple[str, ...]


def find(archives: Sequence[Archive], root: str, split: str) -> CifarSplit:
    """The split of the first of `archives` found in `root`, with the names of the classes.

    Raises:
        ValueError: the split is unknown; `root` or an archive in `root` is still packed; a file is
            too large; or the names cannot be read.
        OSError: the directory, all of the archives, or files of an archive are missing.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split must be 'train' or 'test', not {split!r}")
    if os.path.isfile(root):
        packed = root.endswith((".tar", ".gz", ".tgz"))
        remedy = _how_to_extract(root) if packed else "give the directory of the file"
        raise ValueError(f"root must be a directory, not the file {root!r}; {remedy}")
    os.stat(root)  # raises if it is missing
    for archive in archives:
        known = [name for names in archive.splits.values() for name in names]
        for directory in (root, os.path.join(root, archive.directory)):
            if any(_is_file(os.path.join(directory, name)) for name in known):
                return _found(archive, directory, split)
    title = f"CIFAR-{archives[0].classes}"
    for packed_file in (os.path.join(root, archive.name) for archive in archives):
        if _is_file(packed_file):
            raise ValueError(f"{title} is still packed in {root!r}; {_how_to_extract(packed_file)}")
    expected = " or ".join(archive.directory for archive in archives)
    raise FileNotFoundError(errno.ENOENT, f"no {title} here: no {expected}", root)


def _found(archive: Archive, directory: str, split: str) -> CifarSplit:
    files = archive.splits[split]
    needed = [*files, archive.names]
    missing = [name for name in needed if not _is_file(os.path.join(directory, name))]
    if missing:
        what = f"{', '.join(missing)} missing; extract {archive.name} again"
        raise FileNotFoundError(errno.ENOENT, what, directory)
    path = os.path.join(directory, archive.names)
    with open(path, "rb") as file, naming(path):
        names = tuple(archive.class_names(file.read()))
        if len(names) != archive.classes:
            raise ValueError(f"it names {len(names)} classes, not {archive.classes}")
    return CifarSplit(archive, directory, files, names)


def _is_file(path: str) -> bool:
    """As `os.path.isfile()`, but raise for unreadable paths and for too large files."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISREG(status.st_mode) and status.st_size > _MOST_BYTES:
        raise ValueError(f"{path!r}: {status.st_size} bytes are too many for a file of CIFAR")
    return stat.S_ISREG(status.st_mode)


def _how_to_extract(packed: str) -> str:
    folder = shlex.quote(os.path.dirname(packed) or ".")
    return f"extract the archive first: tar xf {shlex.quote(packed)} -C {folder}"


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Put the path of a file before the text of every `ValueError` of the block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path!r}: {error}") from None


def _pickled_records(key: str, content: bytes) -> Records:
    batch = parse(content)
    rows, labels = batch.get("data"), batch.get(key)
    if not _are_images(rows):
        raise ValueError(f"'data' must be an array of n x {RECORD_BYTES} bytes")
    if not isinstance(labels, list) or set(map(type, labels)) != {int}:
        raise ValueError(f"{key!r} must be a list of integers")
    if len(labels) != len(rows):
        raise ValueError(f"there are {len(rows)} images, but {len(labels)} {key}")
    starts = RECORD_BYTES * np.arange(len(rows))
    start = content.find(rows.data) if rows.flags.c_contiguous else -1
    if start < 0:
        return Records(rows.ravel(), starts, np.array(labels), moved=True)
    return Records(np.frombuffer(content, np.uint8), start + starts, np.array(labels))


def _are_images(rows: object) -> TypeGuard[NDArray[np.uint8]]:
    if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8:
        return False
    return rows.size > 0 and rows.shape[1:] == (RECORD_BYTES,)


def _pickled_names(key: str, content: bytes) -> Sequence[str]:
    names = parse(content).get(key)
    if not isinstance(names, list) or set(map(type, names)) != {str}:
        raise ValueError(f"{key!r} must be a list of names")
    return names


def _binary_records(label_bytes: int, content: bytes) -> Records:
    """Records behind their labels, of which the last one is used: the fine one of CIFAR-100."""
    step = label_bytes + RECORD_BYTES
    if not content or len(content) % step:
        raise ValueError(
            f"its {len(content)} bytes are not a multiple of {step} bytes, the size of a record; "
            "the file is truncated, or of another data set"
        )
    file, starts = np.frombuffer(content, np.uint8), np.arange(label_bytes, len(content), step)
    return Records(file, starts, file[starts - 1])


def _names_in_lines(content: bytes) -> Sequence[str]:
    return [name for line in content.decode().splitlines() if (name := line.strip())]


def _python(classes: int, directory: str, names: str, labels: str, label_names: str) -> Archive:
    return Archive(
        f"cifar-{classes}-python.tar.gz",
        directory,
        _SPLITS[classes],
        names,
        classes,
        partial(_pickled_records, labels),
        partial(_pickled_names, label_names),
    )


def _binary(classes: int, directory: str, names: str, label_bytes: int) -> Archive:
    return Archive(
        f"cifar-{classes}-binary.tar.gz",
        directory,
        {split: [f"{name}.bin" for name in files] for split, files in _SPLITS[classes].items()},
        names,
        classes,
        partial(_binary_records, label_bytes),
        _names_in_lines,
    )


_SPLITS = {
    10: {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    100: {"train": ["train"], "test": ["test"]},
}
# Python's archives first: most users have them, because torchvision reads only these.
CIFAR10 = (
    _python(10, "cifar-10-batches-py", "batches.meta", "labels", "label_names"),
    _binary(10, "cifar-10-batches-bin", "batches.meta.txt", 1),
)
CIFAR100 = (
    _python(100, "cifar-100-python", "meta", "fine_labels", "fine_label_names"),
    _binary(100, "cifar-100-binary", "fine_label_names.txt", 2),
)
