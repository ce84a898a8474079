"""What shows that a JPEG, a PNG or a WAV is not whole."""

import io
import struct
import wave
import zlib

import numpy as np
import pytest
from PIL import Image

from dali_storage.bad_samples.structure import broken


def picture(kind, **options):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def sound(frames=500):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1), out.setsampwidth(2), out.setframerate(8000)
        out.writeframes(bytes(2 * frames))
    return file.getvalue()


JPEG, PNG, WAV = picture("JPEG"), picture("PNG"), sound()
THUMBNAIL = b"\xff\xd8\xff\xe1\0\x08Exif\xff\xd9"  # with an end of its own
WHOLE = {
    "jpeg": JPEG,
    "progressive": picture("JPEG", progressive=True),
    "a film behind it": JPEG + b"film" * 9,
    "fill bytes": JPEG[:2] + b"\xff\xff" + JPEG[2:],
    "thumbnail": THUMBNAIL + JPEG[2:],
    "png": PNG,
    "wav": WAV,
    "no sound": sound(0),
    "wav to a pipe": WAV[:40] + b"\xff" * 4 + WAV[44:],
    "odd chunk": WAV[:12] + b"note\3\0\0\0abc\0" + WAV[12:],
    "bmp": picture("BMP"),
    "tiff": picture("TIFF"),
    "webp": picture("WebP"),
    "jp2": picture("JPEG2000"),
    "ppm": picture("PPM"),
    "flac": b"fLaC....",
    "ogg": b"OggS....",
}
BAD = {
    "half": (JPEG[: len(JPEG) // 2], "no EOI"),
    "two bytes less": (JPEG[:-2], "no EOI"),
    "half a progressive one": (picture("JPEG", progressive=True)[:-900], "no EOI"),
    "zeros at the end": (JPEG[:-500] + bytes(500), "no EOI"),
    "half with a thumbnail": (THUMBNAIL + JPEG[2:900], "no EOI"),
    "header": (JPEG[:100], "beyond its end"),
    "SOI": (JPEG[:2], "in its headers"),
    "no marker": (JPEG[:2] + b"x" + JPEG[2:], "a marker is missing"),
    "no frame": (b"\xff\xd8\xff\xda\0\2\xff\xd9", "no frame"),
    "no size": (b"\xff\xd8\xff\xc0\0\x08\x08\0\0\0\1\1\xff\xda\0\2\xff\xd9", "no frame"),
    "png": (PNG[: len(PNG) // 2], "no IEND"),
    "no IEND": (PNG[:-12], "no IEND"),
    "png header": (PNG[:20] + b"\xff" + PNG[21:], "CRC"),
    "no IHDR": (PNG[:8] + struct.pack(">I4sI", 0, b"IEND", zlib.crc32(b"IEND")), "no IHDR"),
    "wav": (WAV[:500], "shorter"),
    "wav header": (WAV[:30], "no data"),
    "empty": (b"", "empty"),
    "html": (b"<html>404</html>", "format is unknown"),
    "zeros": (bytes(4096), "zeros"),
    "hole": (bytes(4096) + JPEG[4096:], "zeros"),
    "gif": (picture("GIF"), "format is unknown"),
}


def judged(data, name=b"c/1.JPG"):
    """Of an array, as in a batch, and of a part of memory."""
    found = {
        broken(each, lambda: name) for each in (np.frombuffer(data, np.uint8), memoryview(data))
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE)
def test_a_whole_sample_passes(data):
    assert judged(data) == judged(data, b"") == ""


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_a_damaged_sample_is_told_and_why(data, words):
    assert words in judged(data)


@pytest.mark.parametrize("name", ["empty", "html", "zeros", "gif"])
def test_of_a_container_or_a_raw_file_only_known_formats_are_judged(name):
    data, _ = BAD[name]
    assert judged(data, b"") == ""
    assert bool(judged(data, b"c/1.raw")) == (name == "empty")
    assert judged(JPEG[:-2], b"c/1.raw")


def test_no_cut_and_no_damage_of_headers_is_an_error_of_ours():
    """Every prefix of a header, and every byte of it changed."""
    for data in (JPEG, PNG, WAV):
        for at in range(min(len(data), 700)):
            judged(data[:at])
            judged(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
