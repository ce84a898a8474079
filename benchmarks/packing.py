"""The pictures of the demo in containers: tars of WebDataset, TFRecord files, and their indexes.

Sample i of the containers is file i of `readers.file`, so that every byte can be compared.
"""

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import google_crc32c
import numpy as np
from PIL import Image

from bmap_tools.console import Tick
from dali_storage import IntArray
from dali_storage.samples.discovery import from_directory

from .directories import make_whole
from .shards import DIRECTORY, SUFFIXES, find

CONTAINERS = 10

Picture = tuple[str, bytes, int]
"""A name, the bytes of the JPEG, and the label."""


def make(directory: str, tick: Tick, containers: int = CONTAINERS) -> None:
    """Pack `directory/train` into `directory/shards`, unless that was done.

    The files are the same every time. An interrupt leaves those formats that are complete.

    Args:
        directory: of the data set.
        tick: is called with the number of pictures packed, of each format.
        containers: how many files of each format.
    """
    catalog = from_directory(os.path.join(directory, "train"))
    if not 1 <= containers <= len(catalog):
        raise ValueError(f"containers must be from 1 to {len(catalog)}, not {containers}")
    parts = np.array_split(np.arange(len(catalog)), containers)
    counts = [len(part) for part in parts]

    def pictures(part: IntArray, packed: int) -> Iterator[Picture]:
        for sample in part.tolist():
            with open(catalog.path(sample), "rb") as file:
                yield f"{sample:06d}", file.read(), int(catalog.labels[sample])
            tick(packed + sample + 1)

    def fill(making: str, suffix: str, packed: int) -> None:
        for number, part in enumerate(parts):
            path = os.path.join(making, f"{number:05d}")
            lines = _WRITERS[suffix](path + suffix, pictures(part, packed))
            with open(path + ".idx", "w", encoding="ascii") as index:
                index.writelines(lines)

    def complete(form: str, path: str) -> bool:
        return bool(find(directory, form).counts.tolist() == counts)

    for position, (form, suffix) in enumerate(SUFFIXES.items()):
        make_whole(
            os.path.join(directory, DIRECTORY),
            form,
            [f"{number:05d}{end}" for number in range(containers) for end in (suffix, ".idx")],
            partial(fill, suffix=suffix, packed=position * len(catalog)),
            partial(complete, form),
        )


def _write_tar(path: str, pictures: Iterable[Picture]) -> Iterator[str]:
    """Write a tar of jpg and cls, int32; the lines of its index, version 1.2 of DALI's."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, image, label in pictures:
            for end, contents in (("jpg", image), ("cls", np.int32(label).tobytes())):
                member = tarfile.TarInfo(f"{name}.{end}")
                member.size = len(contents)
                tar.addfile(member, io.BytesIO(contents))
    with tarfile.open(path, "r:") as tar:
        words = [
            f"{member.name[-3:]} {member.offset_data} {member.size} {member.name}" for member in tar
        ]
    yield f"v1.2 {len(words) // 2}\n"
    yield from (f"{' '.join(pair)}\n" for pair in zip(words[::2], words[1::2], strict=True))


def _write_tfrecord(path: str, pictures: Iterable[Picture]) -> Iterator[str]:
    """Write records as the scripts of TensorFlow for ImageNet do; the lines of DALI's index."""
    position = 0
    with open(path, "wb") as file:
        for name, image, label in pictures:
            width, height = Image.open(io.BytesIO(image)).size
            payload = _example(
                {
                    "image/height": _integer(height),
                    "image/width": _integer(width),
                    "image/format": _text(b"JPEG"),
                    "image/filename": _text(f"{name}.jpg".encode()),
                    "image/class/label": _integer(label),
                    "image/encoded": _text(image),
                }
            )
            length = len(payload).to_bytes(8, "little")
            written = file.write(length + _checksum(length) + payload + _checksum(payload))
            yield f"{position} {written}\n"
            position += written


_WRITERS: Mapping[str, Callable[[str, Iterable[Picture]], Iterator[str]]] = {
    ".tar": _write_tar,
    ".tfrecord": _write_tfrecord,
}


def _checksum(data: bytes) -> bytes:
    """The masked CRC32C of TFRecord."""
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


# Fields of protobuf as tf.train.Example has them: features, map entries, kinds, values.


def _example(features: Mapping[str, bytes]) -> bytes:
    entries = [_field(1, key.encode()) + _field(2, value) for key, value in features.items()]
    return _field(1, b"".join(_field(1, entry) for entry in entries))


def _text(value: bytes) -> bytes:
    return _field(1, _field(1, value))


def _integer(value: int) -> bytes:
    return _field(3, _field(1, _varint(value)))


def _field(number: int, contents: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(contents)) + contents


def _varint(value: int) -> bytes:
    groups = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])
