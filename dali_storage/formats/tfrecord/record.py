"""Records of TFRecord files, and the features that are wanted of them.

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
    """What is wanted of a feature: a FixedLenFeature or VarLenFeature of `nvidia.dali.tfrecord`.

    Attributes:
        dtype: int64, float32, or uint8 for a string.
        shape: of a FixedLenFeature; of a VarLenFeature its partial_shape, the shape of an item of
            its first dimension; () of a string.
        fixed: which of the two it is.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    fixed: bool = True

    @property
    def kind(self) -> int:
        """How it is stored: one of the kinds in `example`."""
        return {"u": example.BYTES, "f": example.FLOATS, "i": example.INTS}[self.dtype.kind]


def masked(crc: int) -> int:
    """How a CRC-32C is stored, so that those of data that contain their own differ from it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
