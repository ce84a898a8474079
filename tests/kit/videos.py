"""Videos that DALI decodes on the CPU: Motion JPEG in AVI, written by hand.

The layout is that of Microsoft's AVI RIFF File Reference; all numbers are little-endian.
"""

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

_RATE = 25  # frames a second
_KEY_FRAME, _HAS_INDEX = 0x10, 0x10


def write_video(path: Path, frames: int, width: int = 48, height: int = 32) -> None:
    """A video of so many frames, all different."""
    random = np.random.default_rng(frames)
    movie, index = b"movi", b""
    for _ in range(frames):
        jpeg = _jpeg(random.integers(0, 256, (4, 6, 3), np.uint8), width, height)
        index += struct.pack("<4s3I", b"00dc", _KEY_FRAME, len(movie), len(jpeg))
        movie += _chunk(b"00dc", jpeg)
    main = 10**6 // _RATE, 0, 0, _HAS_INDEX, frames, 0, 1, 0, width, height, 0, 0, 0, 0
    stream = 0, 0, 0, 0, 1, _RATE, 0, frames, 0, 0, 0, 0, 0, width, height
    picture = 40, width, height, 1, 24, b"MJPG", 0, 0, 0, 0, 0
    described = _chunk(b"strh", b"vidsMJPG" + struct.pack("<I2H8I4H", *stream))
    described += _chunk(b"strf", struct.pack("<I2i2H4s5I", *picture))
    header = _chunk(b"avih", struct.pack("<14I", *main)) + _chunk(b"LIST", b"strl" + described)
    parts = _chunk(b"LIST", b"hdrl" + header) + _chunk(b"LIST", movie) + _chunk(b"idx1", index)
    path.write_bytes(_chunk(b"RIFF", b"AVI " + parts))


def _jpeg(colours: np.ndarray, width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(colours).resize((width, height)).save(file, "JPEG")
    return file.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", kind, len(content)) + content + bytes(len(content) % 2)
