"""Archives of CIFAR-10 and CIFAR-100 with random images, in the format of the original ones."""

import io
import pickle
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
ROWS = 60  # in a file of the small archive that the tests of the loaders share
CLASSES = "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
SUPERCLASSES = tuple(f"coarse_{number}" for number in range(20))
FINE_CLASSES = tuple(f"fine_{number}" for number in range(100))


@dataclass(frozen=True)
class Images:
    """uint8[n, 3072], and the labels of the images: int64[n]."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


class _Python2Pickler(pickle._Pickler):
    """Writes protocol 2 as cPickle of Python 2 did: it numbered, from 1, what others refer to."""

    dispatch = pickle._Pickler.dispatch | {}

    def save_string(self, value: str | bytes) -> None:
        content = value.encode("latin-1") if isinstance(value, str) else value
        length = len(content)
        self.write(
            (b"U%c" % length if length < 256 else b"T" + struct.pack("<I", length)) + content
        )
        if isinstance(value, str) and value not in {"u1", "|"}:  # of an array alone
            self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string

    def memoize(self, value: object) -> None:
        if not isinstance(value, tuple):
            super().memoize(value)

    def put(self, number: int) -> bytes:
        return super().put(number + 1)

    def _batch_setitems(self, items: Any) -> None:
        self.write(pickle.MARK)
        for value in chain.from_iterable(items):
            self.save(value)
        self.write(pickle.SETITEMS)

    def save_global(self, value: Any, name: str | None = None) -> None:
        names = {np.ndarray: b"numpy\nndarray", np.dtype: b"numpy\ndtype"}
        self.write(b"c%s\n" % names.get(value, b"numpy.core.multiarray\n_reconstruct"))
        self.memoize(value)

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, np.dtype):
            return np.dtype, ("u1", 0, 1), value.__reduce__()[2]
        return NotImplemented


def pickled(items: dict[str, Any]) -> bytes:
    """A dict as Python 2 pickled it."""
    lists = {name: [*each] if isinstance(each, tuple) else each for name, each in items.items()}
    _Python2Pickler(file := io.BytesIO(), 2).dump(lists)
    return file.getvalue()


def make_images(rows: int, classes: int, seed: int) -> Images:
    random = np.random.default_rng(seed)
    return Images(
        random.integers(0, 256, (rows, 3072), np.uint8), random.integers(0, classes, rows)
    )


def batch_of_python(name: str, images: Images) -> bytes:
    """A batch of CIFAR-10, as in cifar-10-batches-py."""
    labels = images.labels.tolist()
    return pickled(
        {
            "batch_label": name,
            "labels": labels,
            "data": images.pixels,
            "filenames": [f"{CLASSES[label]}_s_{i:06d}.png" for i, label in enumerate(labels)],
        }
    )


def write_cifar10(root: Path, *, rows: int = 200, seed: int = 0) -> dict[str, Images]:
    """Both forms of CIFAR-10 in `root`, with `rows` images a file; returns its splits."""
    python, binary = root / PYTHON, root / BINARY
    python.mkdir(parents=True)
    binary.mkdir()
    titles = {f"data_batch_{i}": f"training batch {i} of 5" for i in range(1, 6)}
    batches = {}
    for name, title in (titles | {"test_batch": "testing batch 1 of 1"}).items():
        batches[name] = images = make_images(rows, 10, seed + len(batches))
        (python / name).write_bytes(batch_of_python(title, images))
        columns = images.labels[:, None].astype(np.uint8), images.pixels
        (binary / f"{name}.bin").write_bytes(np.hstack(columns).tobytes())
    meta = {"num_cases_per_batch": rows, "label_names": CLASSES, "num_vis": 3072}
    (python / "batches.meta").write_bytes(pickled(meta))
    (binary / "batches.meta.txt").write_text("\n".join([*CLASSES, "", ""]))
    return {"train": _joined([batches[name] for name in titles]), "test": batches["test_batch"]}


def write_cifar100(root: Path, *, rows: int = 300) -> None:
    """Both forms of CIFAR-100 in `root`, with `rows` images a split."""
    python, binary = root / "cifar-100-python", root / "cifar-100-binary"
    python.mkdir(parents=True)
    binary.mkdir()
    for seed, name in enumerate(("train", "test")):
        images = make_images(rows, 100, seed)
        coarse = images.labels // 5
        batch = {
            "filenames": [f"{FINE_CLASSES[label]}_s_{label:06d}.png" for label in images.labels],
            "batch_label": f"{name}ing batch 1 of 1",
            "fine_labels": images.labels.tolist(),
            "coarse_labels": coarse.tolist(),
            "data": images.pixels,
        }
        (python / name).write_bytes(pickled(batch))
        labels = np.column_stack([coarse, images.labels]).astype(np.uint8)
        (binary / f"{name}.bin").write_bytes(np.hstack([labels, images.pixels]).tobytes())
    names = {"fine_label_names": FINE_CLASSES, "coarse_label_names": SUPERCLASSES}
    (python / "meta").write_bytes(pickled(names))
    (binary / "fine_label_names.txt").write_text("\n".join([*FINE_CLASSES, ""]))
    (binary / "coarse_label_names.txt").write_text("\n".join([*SUPERCLASSES, ""]))


def _joined(parts: Sequence[Images]) -> Images:
    return Images(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
