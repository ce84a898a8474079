"""Archives of CIFAR-10 and CIFAR-100 with random images, byte for byte as the original ones."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

_CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
_SUPERCLASSES = """
aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
household_furniture insects large_carnivores large_man-made_outdoor_things
large_natural_outdoor_scenes large_omnivores_and_herbivores medium_mammals non-insect_invertebrates
people reptiles small_mammals trees vehicles_1 vehicles_2
"""
_FINE_CLASSES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
PYTHON, BINARY = "cifar-10-batches-py", "cifar-10-batches-bin"
ROWS = 60  # in a file of the small archive that the tests of the loaders share
CLASSES = tuple(_CLASSES.split())
SUPERCLASSES = tuple(_SUPERCLASSES.split())
FINE_CLASSES = tuple(_FINE_CLASSES.split())


@dataclass(frozen=True)
class Images:
    """uint8[n, 3072], and the labels of the images: int64[n]."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]


class Python2Pickle:
    """Writes pickles as cPickle of Python 2 did: protocol 2; every value but integers is numbered.

    Attributes:
        written: the bytes so far, with the opcodes of pickletools.py.
    """

    def __init__(self) -> None:
        self.written = bytearray(b"\x80\x02")
        self._values = 0

    def number(self) -> None:
        self._values += 1
        put = b"q%c" % self._values if self._values < 256 else b"r" + _uint32(self._values)
        self.written += put

    def text(self, value: str) -> None:
        self.written += b"U%c" % len(value) + value.encode("latin-1")
        self.number()

    def integer(self, value: int) -> None:
        self.written += b"K%c" % value if value < 256 else b"M" + struct.pack("<H", value)

    def list(self, values: Sequence[str | int]) -> None:
        self.written += b"]"
        self.number()
        for start in range(0, len(values), 1000):
            part = values[start : start + 1000]
            self.written += b"(" if len(part) > 1 else b""
            for value in part:
                self.value(value)
            self.written += b"e" if len(part) > 1 else b"a"

    def array(self, value: npt.NDArray[np.uint8]) -> None:
        """Of bytes, in C's or Fortran's order."""
        self.written += b"cnumpy.core.multiarray\n_reconstruct\n"
        self.number()
        self.written += b"cnumpy\nndarray\n"
        self.number()
        self.written += b"K\0\x85U\x01b\x87R"
        self.number()
        self.written += b"(K\x01"
        for length in value.shape:
            self.integer(length)
        self.written += b"%ccnumpy\ndtype\n" % (0x84 + value.ndim)  # TUPLE1, TUPLE2 or TUPLE3
        self.number()
        self.written += b"U\x02u1K\0K\x01\x87R"
        self.number()
        self.written += b"(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\0tb"
        self.written += b"\x89" if value.flags.c_contiguous else b"\x88"
        self.written += b"T" + _uint32(value.nbytes) + value.tobytes(order="A") + b"tb"

    def value(self, value: object) -> None:
        if isinstance(value, str):
            self.text(value)
        elif isinstance(value, int):
            self.integer(value)
        elif isinstance(value, np.ndarray):
            self.array(value)
        else:
            assert isinstance(value, (list, tuple))
            self.list(value)

    def dict(self, items: dict[str, object]) -> bytes:
        """A whole pickle of a dict."""
        self.written += b"}"
        self.number()
        self.written += b"("
        for key, value in items.items():
            self.text(key)
            self.value(value)
        return bytes(self.written + b"u.")


def _uint32(value: int) -> bytes:
    return struct.pack("<I", value)


def pickled(items: dict[str, object]) -> bytes:
    """A dict as Python 2 pickled it."""
    return Python2Pickle().dict(items)


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


def write_cifar100(root: Path, *, rows: int = 300, seed: int = 0) -> dict[str, Images]:
    """Both forms of CIFAR-100 in `root`, with `rows` images a split; returns its splits."""
    python, binary = root / "cifar-100-python", root / "cifar-100-binary"
    python.mkdir(parents=True)
    binary.mkdir()
    splits = {"train": make_images(rows, 100, seed), "test": make_images(rows, 100, seed + 1)}
    for name, images in splits.items():
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
    return splits


def _joined(parts: Sequence[Images]) -> Images:
    return Images(
        np.concatenate([part.pixels for part in parts]),
        np.concatenate([part.labels for part in parts]),
    )
