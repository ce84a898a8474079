"""Where the records of CIFAR-10 and CIFAR-100 are in the files that are distributed.

The formats are those of https://www.cs.toronto.edu/~kriz/cifar.html. A record is an image of 32 x
32 pixels: the red, the green and the blue plane, row by row. Nothing is unpickled.
"""

import contextlib
import errno
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .._types import HostBuffer, IntArray
from .pickles import ByteArray, parse

SHAPE = 3, 32, 32
RECORD_BYTES = 3 * 32 * 32


class Form(Protocol):
    """How records, labels and the names of the classes are written. Both raise `ValueError`."""

    def records(self, content: HostBuffer) -> tuple[IntArray, IntArray]:
        """Where the n records start in a file with these bytes, and their labels: int64[n]."""

    def classes(self, content: bytes) -> Sequence[str]:
        """The names in a file with these bytes."""


@dataclass(frozen=True, slots=True)
class _Pickled:
    """Dicts, pickled by Python 2.

    Attributes:
        labels: the key of the labels of a batch.
        names: the key of the names of the classes.
    """

    labels: str
    names: str

    def records(self, content: HostBuffer) -> tuple[IntArray, IntArray]:
        batch = self._dict(content.data)
        data, labels = batch.get("data"), batch.get(self.labels)
        if not isinstance(data, ByteArray) or data.shape[1:] != (RECORD_BYTES,):
            raise ValueError(f"'data' must be an array of n x {RECORD_BYTES} bytes")
        if type(labels) is not list or set(map(type, labels)) != {int}:
            raise ValueError(f"{self.labels!r} must be a list of integers")
        rows = data.shape[0]
        if len(labels) != rows:
            raise ValueError(f"there are {rows} images, but {len(labels)} {self.labels}")
        if data.fortran:  # records lie across each other
            part = content[data.start :][: rows * RECORD_BYTES]
            part[:] = part.reshape(RECORD_BYTES, rows).T.ravel()
        return data.start + RECORD_BYTES * np.arange(rows), np.array(labels, np.int64)

    def classes(self, content: bytes) -> Sequence[str]:
        names = self._dict(memoryview(content)).get(self.names)
        if type(names) is not list or set(map(type, names)) != {str}:
            raise ValueError(f"{self.names!r} must be a list of names")
        return names

    def _dict(self, content: memoryview) -> dict[str, Any]:
        value = parse(content)
        if type(value) is not dict:
            raise ValueError(f"it holds a {type(value).__name__}, not a dict")
        return value


@dataclass(frozen=True, slots=True)
class _Binary:
    """Records, each behind its labels; a text file with a name on each line.

    Attributes:
        label_bytes: how many labels a record has, of a byte each. The last one counts: that of
            CIFAR-100's 100 classes follows that of its 20 superclasses.
    """

    label_bytes: int

    def records(self, content: HostBuffer) -> tuple[IntArray, IntArray]:
        step = self.label_bytes + RECORD_BYTES
        if not content.size or content.size % step:
            raise ValueError(
                f"its {content.size} bytes are not a number of records of {step} bytes; the file "
                "is truncated, or of another data set"
            )
        starts = np.arange(self.label_bytes, content.size, step)
        return starts, content[starts - 1].astype(np.int64)

    def classes(self, content: bytes) -> Sequence[str]:
        return content.decode().split()


@dataclass(frozen=True, slots=True)
class Archive:
    """One of the archives in which a data set is distributed.

    Attributes:
        name: of the archive.
        directory: the one that is in it.
        files: those of each split, in the order of their records.
        names: the file with the names of the classes.
        form: how all of them are written.
    """

    name: str
    directory: str
    files: Mapping[str, Sequence[str]]
    names: str
    form: Form

    def found_in(self, root: str) -> str | None:
        """The directory, if it is `root` or in it."""
        known = [name for names in self.files.values() for name in names]
        for directory in (root, os.path.join(root, self.directory)):
            if any(os.path.isfile(os.path.join(directory, name)) for name in known):
                return directory
        return None


_SPLITS_10 = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_SPLITS_100 = {"train": ["train"], "test": ["test"]}


def _with_suffix(splits: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    return {split: [f"{name}.bin" for name in names] for split, names in splits.items()}


# Those of Python first: most users have them, because torchvision takes no others.
CIFAR10 = (
    Archive(
        "cifar-10-python.tar.gz",
        "cifar-10-batches-py",
        _SPLITS_10,
        "batches.meta",
        _Pickled("labels", "label_names"),
    ),
    Archive(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        _with_suffix(_SPLITS_10),
        "batches.meta.txt",
        _Binary(1),
    ),
)
CIFAR100 = (
    Archive(
        "cifar-100-python.tar.gz",
        "cifar-100-python",
        _SPLITS_100,
        "meta",
        _Pickled("fine_labels", "fine_label_names"),
    ),
    Archive(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        _with_suffix(_SPLITS_100),
        "fine_label_names.txt",
        _Binary(2),
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A split of a data set on disk.

    Attributes:
        directory: where its files are.
        files: their names, in the order of their records.
        form: how they are written.
        classes: the names of the labels.
    """

    directory: str
    files: Sequence[str]
    form: Form
    classes: tuple[str, ...]

    def path(self, file: int) -> str:
        """The path of one of the files."""
        return os.path.join(self.directory, self.files[file])


def find(title: str, archives: Sequence[Archive], root: str, split: str) -> Found:
    """The split of the first of `archives` that is in `root`; the names of its classes are read.

    Raises:
        ValueError: there is no such split; `root` or what is in it is still packed; or the names
            cannot be read.
        FileNotFoundError: there is no such directory, or none of the archives in it, or it lacks
            files.
    """
    if split not in archives[0].files:
        raise ValueError(f"split must be 'train' or 'test', not {split!r}")
    if os.path.isfile(root):
        packed = ".t" in os.path.basename(root)
        remedy = _how_to_extract(root) if packed else "give the directory that it is in"
        raise ValueError(f"root must be a directory, not the file {root!r}; {remedy}")
    os.stat(root)  # raises if it is missing
    for archive in archives:
        directory = archive.found_in(root)
        if directory is not None:
            return _found(archive, directory, split)
    for archive in archives:
        packed_file = os.path.join(root, archive.name)
        if os.path.isfile(packed_file):
            raise ValueError(f"{title} is still packed in {root!r}; {_how_to_extract(packed_file)}")
    expected = " or ".join(archive.directory for archive in archives)
    raise FileNotFoundError(errno.ENOENT, f"no {title} here: no {expected}", root)


def _found(archive: Archive, directory: str, split: str) -> Found:
    files = archive.files[split]
    needed = [*files, archive.names]
    missing = [name for name in needed if not os.path.isfile(os.path.join(directory, name))]
    if missing:
        what = f"{', '.join(missing)} missing; extract {archive.name} again"
        raise FileNotFoundError(errno.ENOENT, what, directory)
    names = os.path.join(directory, archive.names)
    with open(names, "rb") as file, naming(names):
        classes = tuple(archive.form.classes(file.read()))
    return Found(directory, files, archive.form, classes)


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
