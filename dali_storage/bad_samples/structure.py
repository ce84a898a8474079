"""Checks for truncated files, by their first and last bytes and the headers between.

Pixels and sound are not decoded, so a check takes a few microseconds. Sources: ITU-T T.81, annex B
(JPEG); PNG, third edition, section 5; Multimedia Programming Interface 1.0, chapter 2 (WAV).
"""

import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

_OTHERS = (
    *(b"BM", b"II*\0", b"MM\0*", b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51", b"RIFF", b"fLaC", b"OggS"),
    *(b"P%d" % kind for kind in range(1, 7)),
)
"""The first bytes of DALI's other formats: BMP, TIFF, JPEG 2000, WebP, FLAC, Ogg, PNM."""

_NAMED = frozenset(
    b".jpg .jpeg .png .bmp .tif .tiff .pnm .ppm .pgm .pbm .jp2 .webp .flac .ogg .wav".split()
)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15
_END = b"\xff\xd9"


def broken(data: Any, name: Callable[[], bytes] = bytes) -> str:
    """Return why a sample cannot be decoded; "" if the sample looks whole, or is not judged.

    JPEG, PNG and WAV are recognized by their first bytes and judged. Other bytes are wrong only in
    a file whose `name` has the extension of an image or of sound, if no format of DALI begins so.
    An empty file is wrong; an empty sample without a name, as in a container, is not.
    """
    view = memoryview(data)
    head = bytes(view[:12])
    if head.startswith(b"\xff\xd8"):
        return _jpeg(view)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(view)
    if head.startswith(b"RIFF") and head.endswith(b"WAVE"):
        return _wav(view)
    if head.startswith(_OTHERS) or not (file := name()):
        return ""
    if not head:
        return "it is empty"
    if os.path.splitext(file)[1].lower() not in _NAMED:
        return ""
    return "its format is unknown" if any(head) else "it begins with zeros"


def kind(data: Any) -> str:
    """Return the kind of a sample for DALI's decoders, by its first bytes: image, sound or ""."""
    head = bytes(memoryview(data)[:12])
    if head.startswith((b"fLaC", b"OggS")) or head.endswith(b"WAVE"):
        return "sound"
    return "image" if head.startswith((*_OTHERS, b"\xff\xd8", b"\x89PNG")) else ""


def _jpeg(view: memoryview) -> str:
    at, marker, has_frame, end = 2, 0, False, len(view)
    while marker != 0xDA:  # the start of a scan
        if at + 4 > end:
            return "JPEG: cut short in its headers"
        if view[at] != 0xFF:
            return "JPEG: a marker is missing"
        if (marker := view[at + 1]) == 0xFF:  # a fill byte
            at += 1
            continue
        length = view[at + 2] << 8 | view[at + 3]
        if length < 2 or at + 2 + length > end:
            return "JPEG: a segment reaches beyond its end"
        if marker in _FRAMES:
            has_frame = length >= 8 and any(view[at + 5 : at + 7]) and any(view[at + 7 : at + 9])
        at += 2 + length
    if not has_frame:
        return "JPEG: no frame before its scan, or one without a size"
    # Other data, such as a film, may follow the end. A thumbnail has its own end, but earlier.
    if view[-2:] != _END and bytes(view[at:]).rfind(_END) < 0:
        return "JPEG: cut short (no EOI)"
    return ""


def _png(view: memoryview) -> str:
    at, kind = 8, b""
    while at + 12 <= len(view):
        before, (length, kind) = kind, struct.unpack(">I4s", view[at : at + 8])
        if not before and (kind, length) != (b"IHDR", 13):
            return "PNG: no IHDR"
        if at + 12 + length > len(view):
            break
        crc = int.from_bytes(view[at + 8 + length : at + 12 + length])
        if not before and zlib.crc32(view[at + 4 : at + 21]) != crc:
            return "PNG: wrong CRC of its header"
        if kind == b"IEND":
            return ""
        at += 12 + length
    return "PNG: cut short (no IEND)"


def _wav(view: memoryview) -> str:
    at = 12
    while at + 8 <= len(view):
        kind, length = struct.unpack("<4sI", view[at : at + 8])
        if kind == b"data":
            whole = length >= 2**31 - 1 or at + 8 + length <= len(view)  # or written to a pipe
            return "" if whole else "WAV: shorter than its header says"
        at += 8 + length + length % 2
    return "WAV: no data"
