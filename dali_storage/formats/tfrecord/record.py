"""Records of TFRecord files, and their wanted features.

A record [1] is a length (uint64), the checksum of these 8 bytes (uint32), so many bytes and their
checksum (uint32), little-endian. A checksum is a CRC-32C, rotated and offset.

[1] https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details
"""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import example

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
OVERHEAD = HEADER.size + FOOTER.size


@dataclass(frozen=True, slots=True)
class Feature:
    """A requested feature: a FixedLenFeature or VarLenFeature of `nvidia.dali.tfrecord`.

    Attributes:
        dtype: int64, float32, or uint8 for a string.
        shape: the shape of a FixedLenFeature; for a VarLenFeature its partial_shape, the shape of
            an item of its first dimension; () for a string.
        fixed: whether the feature is a FixedLenFeature.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    fixed: bool = True

    @property
    def kind(self) -> int:
        """The kind of storage: one of the kinds in `example`."""
        return {"u": example.BYTES, "f": example.FLOATS, "i": example.INTS}[self.dtype.kind]


def masked(crc: int) -> int:
    """Mask a CRC-32C as stored: the CRC of data with an embedded CRC would be problematic."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
