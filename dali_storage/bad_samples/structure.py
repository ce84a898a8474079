"""Checks for truncated files, by their first and last bytes and the headers between.

Pixels and sound are not decoded, so a check takes a few microseconds. Sources: ITU-T T.81, annex B
(JPEG); PNG, third edition, section 5; Multimedia Programming Interface 1.0, chapter 2 (WAV).
"""

import os
import re
import struct
import zlib
from collections.abc import Callable
from typing import Any

_IMAGES = (
    *(b"\xff\xd8", b"\x89PNG", b"BM", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"\0\0\0\x0cjP  "),
    *(b"\xff\x4f\xff\x51", *(b"P%d" % kind for kind in range(1, 7))),
)
"""The first bytes of JPEG, PNG, BMP, TIFF, BigTIFF, JPEG 2000 and PNM."""

_IMAGE_NAMES = frozenset(b".jpg .jpeg .png .bmp .tif .tiff .pnm .ppm .pgm .pbm .jp2 .webp".split())
_SOUND_NAMES = frozenset(
    b".flac .ogg .wav .aif .aiff .au .snd .caf .sph .w64 .rf64 .opus .mp3".split()
)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}  # SOF0 to SOF15, SOF55
_MARKER = re.compile(rb"\xff([\x02-\xcf\xd8-\xfe])")
"""The next marker with a segment. As in libjpeg, other bytes before it are skipped."""

_END = b"\xff\xd9"
_UNKNOWN_LENGTH = 2**31 - 2**16
"""From this length on, a WAV was written to a pipe: SoX has 0x7FFFF000, in whole frames."""


def broken(data: Any, name: Callable[[], bytes] = bytes) -> str:
    """Return why a sample cannot be decoded; "" if the sample looks whole, or is not judged.

    JPEG, PNG and WAV are recognized by their first bytes and judged. All other formats are left to
    the decoder. In a file whose `name` has the extension of an image or of sound, though, zeros and
    HTML are wrong: no format begins so. An empty file is wrong; an empty sample without a name, as
    in a container, is not.
    """
    view = memoryview(data)
    head = bytes(view[:12])
    if check := _check_of(head):
        return check(view)
    text = bytes(view[:64]).lstrip(b"\xef\xbb\xbf \t\r\n").lower()  # behind a byte order mark
    if any(head) and not text.startswith((b"<html", b"<!doctype", b"<?xml")):
        return ""
    if not (file := name()):
        return ""
    if not head:
        return "it is empty"
    if _extension(file) not in _IMAGE_NAMES | _SOUND_NAMES:
        return ""
    return "it is HTML or XML" if any(head) else "it begins with zeros"


def is_judged(data: Any) -> bool:
    """Return whether `broken()` knows the format of a sample."""
    return _check_of(bytes(memoryview(data)[:12])) is not None


def kind(data: Any, name: bytes) -> str:
    """Return the kind of a sample for DALI's decoders: image, sound or "".

    It is told by the first bytes, or else by the extension.
    """
    head = bytes(memoryview(data)[:12])
    if head.startswith((b"fLaC", b"OggS")) or head.endswith(b"WAVE"):
        return "sound"
    if head.startswith(_IMAGES) or head.endswith(b"WEBP") or _extension(name) in _IMAGE_NAMES:
        return "image"
    return "sound" if _extension(name) in _SOUND_NAMES else ""


def _extension(name: bytes) -> bytes:
    return os.path.splitext(name)[1].lower()


def _check_of(head: bytes) -> Callable[[memoryview], str] | None:
    if head.startswith(b"\xff\xd8"):
        return _jpeg
    if head.startswith(b"\x89PNG"):
        return _png
    return _wav if head.startswith(b"RIFF") and head.endswith(b"WAVE") else None


def _jpeg(view: memoryview) -> str:
    at, marker, has_frame, end = 2, 0, False, len(view)
    while marker != 0xDA:  # the start of a scan
        if not (found := _MARKER.search(view, at)) or found.end() + 2 > end:
            return "JPEG: cut short in its headers"
        at, marker = found.end(), found[1][0]
        length = view[at] << 8 | view[at + 1]
        if length < 2 or at + length > end:
            return "JPEG: a segment reaches beyond its end"
        if marker in _FRAMES:
            has_frame = length >= 8 and any(view[at + 3 : at + 5]) and any(view[at + 5 : at + 7])
        at += length
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
            whole = length >= _UNKNOWN_LENGTH or at + 8 + length <= len(view)
            return "" if whole else "WAV: shorter than its header says"
        at += 8 + length + length % 2
    # Decoders find it behind chunks of wrong lengths, too.
    return "" if b"data" in bytes(view[12:]) else "WAV: no data"
