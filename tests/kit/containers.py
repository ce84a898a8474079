"""Writes small containers of all formats from their specifications, without the code under test.

Tars are written by the standard library. The others follow tensorflow/core/lib/io/record_writer.cc
and tensorflow/core/example/*.proto, and MXNet's recordio.cc.
"""

import io
import struct
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import google_crc32c
from wds2idx import IndexCreator  # type: ignore[import-untyped]

Member = tuple[str, bytes]
"""A file in a tar: its name and its bytes."""


def write_tar(path: Path, members: Iterable[Member], flavour: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar of regular files; `flavour` is one of the formats of tarfile."""
    with tarfile.open(path, "w", format=flavour) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def index_by_wds2idx(tar: Path, index: Path | None = None, version: str = "v1.2") -> Path:
    """The index of a tar, which by default lies beside it, as DALI's wds2idx writes it.

    In version v1.1 it has no names.
    """
    index = index or tar.with_suffix(".idx")
    with IndexCreator(str(tar), str(index), verbose=False) as creator:
        creator.create_index()
    if version == "v1.1":
        head, *lines = (line.split(" ") for line in index.read_text().splitlines())
        lines = [[it for n, it in enumerate(line) if n % 4 != 3] for line in lines]
        index.write_text("\n".join(map(" ".join, [[version, head[1]], *lines])))
    return index


# --- TFRecord and tf.train.Example ---------------------------------------------------------------


def masked_crc(data: bytes) -> int:
    """The checksum of a TFRecord: CRC-32C, rotated and offset."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tf_record(payload: bytes) -> bytes:
    """A record of a TFRecord file: 8 bytes of length, 4 of checksum, the payload, 4 of checksum."""
    head = struct.pack("<Q", len(payload))
    sums = (struct.pack("<I", masked_crc(each)) for each in (head, payload))
    return head + next(sums) + payload + next(sums)


def write_tfrecord(path: Path, payloads: Iterable[bytes], index: Path | None = None) -> Path:
    """A TFRecord file and, if wanted, its index: a line "offset size" for each record."""
    lines, position = [], 0
    with open(path, "wb") as file:
        for payload in payloads:
            lines.append(f"{position} {file.write(tf_record(payload))}\n")
            position = file.tell()
    if index is not None:
        index.write_text("".join(lines))
    return path


def varint(number: int) -> bytes:
    """Protobuf's encoding of an int64."""
    number &= 2**64 - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def message(number: int, payload: bytes) -> bytes:
    """A field of protobuf that has a length: a message, bytes, or packed numbers."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def bytes_feature(values: Iterable[bytes]) -> bytes:
    """A tf.train.Feature of strings."""
    return message(1, b"".join(message(1, value) for value in values))


def float_feature(values: Iterable[float], *, packed: bool = True) -> bytes:
    """A tf.train.Feature of float32."""
    words = [struct.pack("<f", value) for value in values]
    one_by_one = b"".join(varint(1 << 3 | 5) + word for word in words)
    return message(2, message(1, b"".join(words)) if packed else one_by_one)


def int64_feature(values: Iterable[int], *, packed: bool = True) -> bytes:
    """A tf.train.Feature of int64."""
    words = [varint(value) for value in values]
    one_by_one = b"".join(varint(1 << 3) + word for word in words)
    return message(3, message(1, b"".join(words)) if packed else one_by_one)


def example(features: Mapping[str, bytes]) -> bytes:
    """A serialized tf.train.Example of encoded features."""
    entries = (
        message(1, message(1, key.encode()) + message(2, value)) for key, value in features.items()
    )
    return message(1, b"".join(entries))


# --- RecordIO ------------------------------------------------------------------------------------

RECORDIO_MAGIC = struct.pack("<I", 0xCED7230A)


def recordio_record(payload: bytes, label: float | Sequence[float], ident: int = 0) -> bytes:
    """An image as MXNet's pack() writes it: cut at magic numbers, each part padded to 4 bytes."""
    if isinstance(label, (int, float)):
        data = struct.pack("<IfQQ", 0, label, ident, 0) + payload
    else:
        head = struct.pack("<IfQQ", len(label), 0.0, ident, 0)
        data = head + struct.pack(f"<{len(label)}f", *label) + payload
    assert len(data) < 1 << 29, "a part has 29 bits of length"
    parts, begin = [], 0
    for position in range(0, len(data) - 3, 4):
        if data[position : position + 4] == RECORDIO_MAGIC:
            parts.append(data[begin:position])
            begin = position + 4
    parts.append(data[begin:])
    record = b""
    for number, part in enumerate(parts):
        middle = 2 if number < len(parts) - 1 else 3
        flag = 0 if len(parts) == 1 else 1 if number == 0 else middle
        record += RECORDIO_MAGIC + struct.pack("<I", flag << 29 | len(part))
        record += part + bytes(-len(part) % 4)
    return record


def write_recordio(paths: Sequence[Path], records: Sequence[Sequence[bytes]], index: Path) -> None:
    """RecordIO files of encoded records, and one index of all: a line "key offset" for each."""
    key = position = 0
    with open(index, "w") as lines:
        for path, group in zip(paths, records, strict=True):
            path.write_bytes(b"".join(group))
            for record in group:
                lines.write(f"{key}\t{position}\n")
                position += len(record)
                key += 1


# --- Containers for orders -----------------------------------------------------------------------


def numbered(counts: Sequence[int]) -> list[list[int]]:
    """The numbers of the samples in containers that have so many each, counted through."""
    numbers = iter(range(sum(counts)))
    return [[next(numbers) for _ in range(count)] for count in counts]


def write_numbered_tars(directory: Path, counts: Sequence[int]) -> tuple[list[str], list[str]]:
    """Tars with so many samples each, of one int64 ("n") that counts them; the paths, the indexes.

    An index needs a sample, so no count is 0.
    """
    tars, indexes = [], []
    for number, group in enumerate(numbered(counts)):
        members = [(f"{sample}.n", struct.pack("<q", sample)) for sample in group]
        tar = write_tar(directory / f"{number}.tar", members)
        indexes.append(str(index_by_wds2idx(tar)))
        tars.append(str(tar))
    return tars, indexes


def write_numbered_tfrecords(directory: Path, counts: Sequence[int]) -> tuple[list[str], list[str]]:
    """The same as TFRecord files with an int64 feature "n". A count may be 0."""
    files, indexes = [], []
    for number, group in enumerate(numbered(counts)):
        payloads = [example({"n": int64_feature([sample])}) for sample in group]
        index = directory / f"{number}.tfrecord.idx"
        files.append(str(write_tfrecord(directory / f"{number}.tfrecord", payloads, index)))
        indexes.append(str(index))
    return files, indexes


def write_numbered_recordios(directory: Path, counts: Sequence[int]) -> tuple[list[str], list[str]]:
    """The same as RecordIO files whose labels count the samples, with one index of all."""
    files = [directory / f"{number}.rec" for number in range(len(counts))]
    groups = [
        [recordio_record(struct.pack("<q", sample), float(sample), sample) for sample in group]
        for group in numbered(counts)
    ]
    write_recordio(files, groups, directory / "all.idx")
    return [str(file) for file in files], [str(directory / "all.idx")]
