"""What shows that a JPEG, a PNG or a WAV is not whole. The oracle of good files is DALI."""

import io
import struct
import zlib
from itertools import product

import numpy as np
import pytest
import soundfile
from nvidia.dali import fn, pipeline_def
from PIL import Image

from dali_storage.bad_samples.structure import broken, kind

RGB = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))


def picture(kind, image=RGB, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def sound(kind="WAV", frames=500, **options):
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(frames) / 9) / 2, 8000, format=kind, **options)
    return file.getvalue()


def of_length(length, wav):
    """A WAV whose header says so many bytes of sound."""
    at = wav.index(b"data") + 4
    return wav[:at] + struct.pack("<I", length) + wav[at + 4 :]


JPEG, PNG, WAV = picture("JPEG"), picture("PNG"), sound()
THUMBNAIL = b"\xff\xd8\xff\xe1\0\x08Exif\xff\xd9"  # with an end of its own
ID3 = b"ID3\3\0\0\0\0\0\x0a" + bytes(10)
NOT_IN_DALI = {"RAW", "SD2", "MP3"}
IMAGES = {
    "jpeg": JPEG,
    "progressive": picture("JPEG", progressive=True),
    "a film behind it": JPEG + b"film" * 9,
    "fill bytes": JPEG[:2] + b"\xff\xff" + JPEG[2:],
    "thumbnail": THUMBNAIL + JPEG[2:],
    "png": PNG,
    "bmp": picture("BMP"),
    "tiff": picture("TIFF"),
    "bigtiff": picture("TIFF", big_tiff=True),
    "big-endian bigtiff": picture("TIFF", Image.new("I;16B", (60, 40)), big_tiff=True),
    "webp": picture("WebP"),
    "jp2": picture("JPEG2000"),
    "j2k": picture("JPEG2000", no_jp2=True),
    "ppm": picture("PPM"),
}
SOUNDS = {
    **{name: sound(name) for name in sorted(soundfile.available_formats().keys() - NOT_IN_DALI)},
    "no sound": sound(frames=0),
    "odd chunk": WAV[:12] + b"note\3\0\0\0abc\0" + WAV[12:],
    "chunk of a wrong length": WAV[:36] + b"LIST\x0a\0\0\0INFOab\x80\x80cdef" + WAV[36:],
    "to a pipe by SoX": of_length(0x7FFFF000, WAV),
    "to a pipe by SoX, 24 bits": of_length(0x7FFFF000 // 3 * 3, sound(subtype="PCM_24")),
    "to a pipe by FFmpeg": of_length(2**32 - 1, WAV),
    "without a length": of_length(0, WAV),
    "RIFX": sound(endian="BIG"),
    "ID3 and WAV": ID3 + WAV,
    "ID3 and FLAC": ID3 + sound("FLAC"),
}
UNDECODED = {
    "marker behind other bytes": JPEG[:2] + b"x" + JPEG[2:],  # DALI 2.0 decodes it
    "jpeg-ls": JPEG.replace(b"\xff\xc0", b"\xff\xf7"),
    "gif": picture("GIF"),
    "avif": picture("AVIF"),
    "mp3": ID3 + sound("MP3"),
    "film": b"RIFF....AVI LIST",
    "text": b"404",
}
"""DALI 2.4 does not decode them, but they are not damaged."""

BAD = {
    "half": (JPEG[: len(JPEG) // 2], "no EOI"),
    "two bytes less": (JPEG[:-2], "no EOI"),
    "half a progressive one": (picture("JPEG", progressive=True)[:-900], "no EOI"),
    "zeros at the end": (JPEG[:-500] + bytes(500), "no EOI"),
    "half with a thumbnail": (THUMBNAIL + JPEG[2:900], "no EOI"),
    "header": (JPEG[:100], "beyond its end"),
    "SOI": (JPEG[:2], "in its headers"),
    "no frame": (b"\xff\xd8\xff\xda\0\2\xff\xd9", "no frame"),
    "no size": (b"\xff\xd8\xff\xc0\0\x08\x08\0\0\0\1\1\xff\xda\0\2\xff\xd9", "no frame"),
    "png": (PNG[: len(PNG) // 2], "no IEND"),
    "no IEND": (PNG[:-12], "no IEND"),
    "png signature": (PNG[:6], "no IEND"),
    "png as text": (PNG.replace(b"\r\n", b"\n"), "no IHDR"),
    "png header": (PNG[:20] + b"\xff" + PNG[21:], "CRC"),
    "no IHDR": (PNG[:8] + struct.pack(">I4sI", 0, b"IEND", zlib.crc32(b"IEND")), "no IHDR"),
    "wav": (WAV[:500], "shorter"),
    "wav header": (WAV[:30], "no data"),
    "empty": (b"", "empty"),
    "html": (b"<html>404</html>", "HTML"),
    "page": (b"<!DOCTYPE html>", "HTML"),
    "page with a mark and lines": (b"\xef\xbb\xbf\r\n\r\n <!DOCTYPE html>", "HTML"),
    "answer of a store": (b'<?xml version="1.0"?><Error>', "XML"),
    "zeros": (bytes(4096), "zeros"),
    "hole": (bytes(4096) + JPEG[4096:], "zeros"),
}


def judged(data, name=b"c/1.JPG"):
    """Of an array, as in a batch, and of a part of memory."""
    found = {
        broken(each, lambda: name) for each in (np.frombuffer(data, np.uint8), memoryview(data))
    }
    assert len(found) == 1
    return found.pop()


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def decoding(file, it):
    data, _ = fn.readers.file(files=[file])
    return fn.decoders.image(data) if it == "image" else fn.decoders.audio(data)[0]


@pytest.mark.parametrize(
    ("data", "it"),
    [*product(IMAGES.values(), ["image"]), *product(SOUNDS.values(), ["sound"])],
    ids=[*IMAGES, *SOUNDS],
)
def test_a_file_that_dali_decodes_passes(data, it, tmp_path):
    (tmp_path / "file").write_bytes(data)
    decoding(str(tmp_path / "file"), it).run()
    assert judged(data) == judged(data, b"") == ""
    assert kind(data, b"c/1.wav") == it


def test_a_format_that_is_not_known_passes():
    assert {name: judged(data) for name, data in UNDECODED.items()} == dict.fromkeys(UNDECODED, "")


@pytest.mark.parametrize(("data", "words"), BAD.values(), ids=BAD)
def test_a_damaged_sample_is_told_and_why(data, words):
    assert words in judged(data)


@pytest.mark.parametrize("name", ["empty", "html", "zeros"])
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
