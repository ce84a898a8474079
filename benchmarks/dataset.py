"""The data set of the demo: JPEGs of a real photograph, as large as those of ImageNet.

They can be packed into containers, too. Sample i of the containers is file i of `readers.file`, so
that every byte can be compared.
"""

import argparse
import errno
import io
import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import google_crc32c
import numpy as np
from matplotlib.cbook import get_sample_data
from PIL import Image

from bmap_tools.atomic import replacing
from bmap_tools.console import Tick, bar
from dali_storage.cli import index
from dali_storage.samples.discovery import from_directory

from .environment import usable_cores
from .workload import DIRECTORY, SUFFIXES, find

IMAGES = 2000
CLASSES = 10
CONTAINERS = 10
SMALLEST_BYTES = 40_000
LARGEST_BYTES = 180_000
SYNSETS = (
    *("n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331", "n01498041"),
    *("n01514668", "n01514859", "n01518878", "n01530575", "n01531178", "n01532829", "n01534433"),
    *("n01537544", "n01558993", "n01560419", "n01580077", "n01582220", "n01592084"),
)
"""The first classes of ILSVRC2012."""


def make(directory: str, tick: Tick, images: int = IMAGES) -> str:
    """Make `directory/train`, unless it is complete, and return its path.

    The pictures are the same every time. An interrupt leaves nothing; files of the user are never
    deleted.
    """
    classes = enumerate(_classes([f"class_{label}" for label in range(CLASSES)], images))
    names = [f"{each}/{number:05d}.jpg" for number, each in classes]
    return _make_whole(directory, "train", names, partial(_fill, names, 0, tick))


def make_imagenet(
    directory: str, tick: Tick, images: int = IMAGES, classes: int = CLASSES, flat_val: bool = False
) -> None:
    """Make `directory/train` and `directory/val` in the layout of ILSVRC2012, as `make()` does.

    `val` has a fifth as many images as `train`, but one of each class. With `flat_val`, it has no
    class directories, and `LOC_val_solution.csv` labels it. The 1 to 20 classes are named after the
    first synsets.
    """
    if not 1 <= classes <= len(SYNSETS) or images < classes:
        what = f"classes must be from 1 to {len(SYNSETS)}, and images at least as many"
        raise ValueError(f"{what}, not {classes} and {images}")
    train = enumerate(_classes(SYNSETS[:classes], images))
    names = [f"{each}/{each}_{number}.JPEG" for number, each in train]
    _make_whole(directory, "train", names, partial(_fill, names, 0, tick))
    synsets = _classes(SYNSETS[:classes], _validation(images, classes))
    random.Random(0).shuffle(synsets)
    rows = [(f"ILSVRC2012_val_{i:08d}", each) for i, each in enumerate(synsets, 1)]
    names = [f"{name}.JPEG" if flat_val else f"{each}/{name}.JPEG" for name, each in rows]
    fill = partial(_fill, names, images, lambda done: tick(images + done))
    _make_whole(directory, "val", names, fill)
    if flat_val:
        lines = [f"{name},{each} 1 2 3 4 \n" for name, each in rows]
        solution = "".join(["ImageId,PredictionString\n", *lines])
        with replacing(os.path.join(directory, "LOC_val_solution.csv")) as file:
            file.write(solution.encode())


def _validation(images: int, classes: int) -> int:
    return max(classes, images // 5)


def _classes(classes: Sequence[str], images: int) -> list[str]:
    """The class of each picture; all are of equal size."""
    return [classes[i * len(classes) // images] for i in range(images)]


def _fill(names: Sequence[str], first: int, tick: Tick, root: str) -> None:
    """Make the pictures from number `first` on in the directory `root`."""
    with Image.open(get_sample_data("grace_hopper.jpg", asfileobj=False)) as image:
        photograph = image.convert("RGB")
    # Threads suffice: Pillow releases the interpreter lock while it scales and encodes.
    with ThreadPoolExecutor(usable_cores()) as pool:
        encoded = pool.map(partial(_encode, photograph), range(first, first + len(names)))
        for done, (name, contents) in enumerate(zip(names, encoded, strict=True), 1):
            path = Path(root, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(contents)
            tick(done)


def _encode(photograph: Image.Image, number: int) -> bytes:
    """Picture `number`: a random part of the photograph, in a random size and quality."""
    generator = random.Random(number)
    for _ in range(100):
        width, height = (round(side * generator.uniform(0.6, 1)) for side in photograph.size)
        left = generator.randint(0, photograph.width - width)
        top = generator.randint(0, photograph.height - height)
        scale = generator.uniform(1, 2)
        size = round(width * scale), round(height * scale)
        picture = photograph.resize(size, box=(left, top, left + width, top + height))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=generator.randint(80, 95))
        if SMALLEST_BYTES <= file.tell() <= LARGEST_BYTES:
            return file.getvalue()
    sizes = f"{SMALLEST_BYTES} to {LARGEST_BYTES} bytes"
    raise ValueError(f"picture {number}: no size from {sizes} in 100 attempts")


def noise(side: int, number: int) -> bytes:
    """PNG `number` of random pixels: no compression, thus about 3 * side**2 + 80 bytes."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _make_whole(
    directory: str,
    part: str,
    names: Iterable[str],
    fill: Callable[[str], None],
    complete: Callable[[str], bool] = os.path.isdir,
) -> str:
    """Let `fill` make `directory/part` with the files `names`; return its path.

    It fills another directory, which is then renamed. If all the files are there already, and
    `complete`, they are left alone; other files are a FileExistsError.
    """
    path, expected = os.path.join(directory, part), set(names)
    found = {str(file.relative_to(path)) for file in Path(path).rglob("*") if not file.is_dir()}
    if found - expected:
        raise FileExistsError(errno.EEXIST, "there are other files than those of the demo", path)
    if found == expected and complete(path):
        return path
    os.makedirs(directory, exist_ok=True)
    making = tempfile.mkdtemp(prefix=".making-", dir=directory)
    try:
        fill(making)
        os.chmod(making, 0o755)  # mkdtemp makes it private
        shutil.rmtree(path, ignore_errors=True)
        os.rename(making, path)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return path


# Containers

Picture = tuple[str, bytes, int]
"""A name, the bytes of the JPEG, and the label."""


def pack(directory: str, tick: Tick, containers: int = CONTAINERS) -> None:
    """Pack `directory/train` into as many tars and TFRecord files in `directory/shards`.

    Complete formats are left alone. The files are the same every time.
    """
    catalog = from_directory(os.path.join(directory, "train"))
    if not 1 <= containers <= len(catalog):
        raise ValueError(f"containers must be from 1 to {len(catalog)}, not {containers}")
    counts = [len(part) for part in np.array_split(np.arange(len(catalog)), containers)]

    def pictures(packed: int) -> Iterator[Picture]:
        for sample, label in enumerate(catalog.labels.tolist()):
            tick(packed + sample + 1)
            yield f"{sample:06d}", Path(os.fsdecode(catalog.path(sample))).read_bytes(), label

    def fill(form: str, packed: int, making: str) -> None:
        every = pictures(packed)
        for number, count in enumerate(counts):
            path = os.path.join(making, f"{number:05d}")
            _WRITERS[form](path + SUFFIXES[form], islice(every, count))
            index.write(path + SUFFIXES[form], path + ".idx", lambda done: None)

    def complete(path: str) -> bool:
        return bool(find(directory, os.path.basename(path)).counts.tolist() == counts)

    for position, (form, suffix) in enumerate(SUFFIXES.items()):
        names = [f"{number:05d}{end}" for number in range(containers) for end in (suffix, ".idx")]
        make_form = partial(fill, form, position * len(catalog))
        _make_whole(os.path.join(directory, DIRECTORY), form, names, make_form, complete)


def _write_tar(path: str, pictures: Iterable[Picture]) -> None:
    """Write a tar of jpg and cls, int32."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, image, label in pictures:
            for end, contents in (("jpg", image), ("cls", np.int32(label).tobytes())):
                member = tarfile.TarInfo(f"{name}.{end}")
                member.size = len(contents)
                tar.addfile(member, io.BytesIO(contents))


def _write_tfrecord(path: str, pictures: Iterable[Picture]) -> None:
    """Write records as the scripts of TensorFlow for ImageNet do."""
    with open(path, "wb") as file:
        for name, image, label in pictures:
            width, height = Image.open(io.BytesIO(image)).size
            features: dict[str, int | bytes] = {
                "image/height": height,
                "image/width": width,
                "image/format": b"JPEG",
                "image/filename": f"{name}.jpg".encode(),
                "image/class/label": label,
                "image/encoded": image,
            }
            write_record(file, features)


def write_record(file: BinaryIO, features: Mapping[str, int | bytes]) -> None:
    """Write a tf.train.Example of single values as a record of a TFRecord file."""
    entries = [_field(1, k.encode()) + _field(2, _kind(v)) for k, v in features.items()]
    example = _field(1, b"".join(_field(1, entry) for entry in entries))
    length = len(example).to_bytes(8, "little")
    file.write(length + _checksum(length) + example + _checksum(example))


_WRITERS = {"webdataset": _write_tar, "tfrecord": _write_tfrecord}


def _checksum(data: bytes) -> bytes:
    """The masked CRC32C of TFRecord."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def _kind(value: int | bytes) -> bytes:
    """A feature of one value."""
    if isinstance(value, int):
        return _field(3, _field(1, _varint(value)))
    return _field(1, _field(1, value))


def _field(number: int, contents: bytes) -> bytes:
    """A field of protobuf."""
    return _varint(number << 3 | 2) + _varint(len(contents)) + contents


def _varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


def main() -> None:
    """Make a data set of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataset", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="where it is made")
    parser.add_argument("--images", type=int, default=IMAGES, help="default: %(default)s")
    parser.add_argument("--layout", choices=("classes", "imagenet"), default="classes")
    parser.add_argument("--classes", type=int, default=CLASSES, help=f"1 to {len(SYNSETS)}")
    text = "val without class directories, and a CSV of labels"
    parser.add_argument("--flat-val", action="store_true", help=text)
    text = "also pack train into N tars of WebDataset and N TFRecord files, in DIR/shards"
    parser.add_argument("--shards", type=int, metavar="N", help=text)
    given = parser.parse_args()
    imagenet, where, images = given.layout == "imagenet", given.directory, given.images
    if not imagenet and (given.flat_val or given.classes != CLASSES):
        parser.error("--classes and --flat-val are for --layout imagenet")
    total = images + imagenet * _validation(images, given.classes)
    try:
        with bar(f"{total} images in {where}", total) as tick:
            if imagenet:
                make_imagenet(where, tick, images, given.classes, given.flat_val)
            else:
                make(where, tick, images)
        if given.shards is not None:
            with bar(f"{given.shards} shards of each format", len(SUFFIXES) * images) as tick:
                pack(where, tick, given.shards)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
