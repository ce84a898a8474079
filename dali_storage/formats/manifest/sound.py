"""Headers of WAV files with separate bytes for each frame: PCM, float, A-law and mu-law.

The layouts are RIFF/WAVE [1] and RF64 [2]. Wrong lengths are treated as in wav.c and rf64.c of
libsndfile, which DALI uses.

[1] Multimedia Programming Interface and Data Specifications 1.0, IBM and Microsoft, 1991
[2] EBU Tech 3306
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

PAGE = 4096
"""Bytes at a file's start, usually with the whole header."""

_CUTTABLE = {1, 3, 6, 7}  # WAVE_FORMAT_PCM, _IEEE_FLOAT, _ALAW, _MULAW: a frame has its own bytes
_EXTENSIBLE = 0xFFFE
_CHUNKS = 1000  # before the frames; a file of zeros has millions


class Sound(NamedTuple):
    """The contents of a WAV's header.

    Attributes:
        rate: samples in a second (Hz).
        frames: their number.
        align: bytes of a frame.
        start: the position of the first frame, in bytes.
        layout: the "fmt " chunk.
    """

    rate: int
    frames: int
    align: int
    start: int
    layout: bytes

    def header(self, nbytes: int) -> bytes:
        """Return a WAV header for so many bytes of frames, less than 4 GiB."""
        fact = struct.pack("<4sII", b"fact", 4, nbytes // self.align)
        body = b"WAVE" + self.layout + fact + struct.pack("<4sI", b"data", nbytes)
        return struct.pack("<4sI", b"RIFF", len(body) + nbytes) + body


def sound_of(head: Any, size: int, more: Callable[[int], Any] | None = None) -> Sound | None:
    """Parse the header of a file of `size` bytes; None if this is not such a WAV, or damaged.

    `head` is the first `PAGE` bytes, and `more()` returns as many from any position; or `head` is
    the whole file.
    """
    start = bytes(head[:PAGE])
    if start[:4] not in (b"RIFF", b"RF64") or start[8:12] != b"WAVE":
        return None
    try:
        return _wav(start, size, more or (lambda at: head[at : at + PAGE]))
    except struct.error:  # truncated or damaged
        return None


def untagged(data: Any) -> Any:
    """Return data without ID3v2 tags at the start.

    libsndfile skips them, too, but cuts as much from the end of a WAV in memory.
    """
    while bytes(data[:3]) == b"ID3" and len(data) >= 10:
        nbytes = 0
        for bits in data[6:10]:  # 7 of each byte
            nbytes = nbytes << 7 | bits & 127
        data = data[10 + nbytes :]
    return data


def _wav(data: bytes, size: int, more: Callable[[int], Any]) -> Sound | None:
    """Go from chunk to chunk; `data` is a part of the file from `base`."""
    at, base, layout, long = 12, 0, b"", 0
    is_long, unclosed = data[:4] == b"RF64", data[:8] == b"RIFF\x08\0\0\0"
    for _ in range(_CHUNKS):
        if at + 8 > size:
            break
        if at + 64 > base + len(data) < size:  # neither is a "fmt " chunk of more than 40 bytes
            base, data = at, bytes(more(at))
        name, nbytes = struct.unpack_from("<4sI", data, at - base)
        if name == b"data":
            nbytes = size if unclosed and not nbytes else long or nbytes
            return _frames(layout, at + 8, min(nbytes, size - at - 8))
        if name == b"fmt ":
            layout = data[at - base : at - base + 8 + nbytes]
        elif name == b"ds64" and is_long:
            (long,) = struct.unpack_from("<Q", data, at - base + 16)
        at += 8 + nbytes + (nbytes & 1)
    return None


def _frames(layout: bytes, start: int, nbytes: int) -> Sound | None:
    size, kind, channels, rate, _, align, bits = struct.unpack_from("<IHHIIHH", layout, 4)
    if kind == _EXTENSIBLE:
        (kind,) = struct.unpack_from("<H", layout, 32)
    is_plain = kind in _CUTTABLE and rate > 0 and align > 0 and align * 8 == channels * bits
    if is_plain and len(layout) == 8 + size and not size % 2:
        return Sound(rate, nbytes // align, align, start, layout)
    return None
