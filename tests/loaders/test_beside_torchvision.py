"""image_folder() beside torchvision's ImageFolder and Pillow: which files, and their pixels."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms
from torchvision.datasets import ImageFolder

from dali_storage import readers
from dali_storage.loaders import image_folder, presets
from tests.kit.pixels import decoded, delivered, difference

DALI = pytest.mark.dali("2.4", "older decoders differ in other ways")
NAMES = """a/1.jpg a/dir.jpg/2.bmp a/z.jpg a/in/0.jpg a/in/.hid/0.PNG a/in-2/0.jpg a/in/er/9.Tiff
a/.x.webp a/text.txt a/in/film.gif a/sound.wav a-b/in/0.JPEG .hidden/0.ppm b/.jpg é/in/é.jpg
far/0.jpg top.jpg"""
LINKS = {"b/linked": "../a/in", "b/dir.png": "../far", "b/one.jpg": "/nowhere", "link": "far"}


def test_files_and_labels_are_torchvisions(tmp_path):
    for name in NAMES.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name, target in LINKS.items():
        (tmp_path / name).symlink_to(target)
    theirs = [(os.path.relpath(path, tmp_path), it) for path, it in ImageFolder(tmp_path).samples]
    assert len(theirs) == 19
    with image_folder(tmp_path, train=False, batch_size=1, device="cpu") as loader:
        found = readers.catalog(loader.pipeline, "Reader")
        names = [os.fsdecode(found.name(index)) for index in range(len(found))]
    assert [*zip(names, found.labels.tolist(), strict=True)] == theirs


def test_files_that_only_one_of_both_takes(tmp_path):
    (tmp_path / "c").mkdir()
    for name in ("0.pnm", "1.pbm", "2.jp2"):
        (tmp_path / "c" / name).touch()
    os.mkfifo(tmp_path / "c" / "3.png")  # torchvision waits for a writer for ever
    assert len(ImageFolder(tmp_path).samples) == 1
    with image_folder(tmp_path, train=False, batch_size=1, device="cpu") as loader:
        assert len(loader) == 3
    for link, target in (("c/circle", tmp_path), ("broken", "/nowhere")):
        (tmp_path / link).symlink_to(target)
        with pytest.raises(OSError, match=link):
            len(image_folder(tmp_path, train=False, batch_size=1, device="cpu"))


# Pixels

PICTURE = np.random.default_rng(1).integers(0, 256, (10, 15, 3), np.uint8)
RGB = Image.fromarray(PICTURE).resize((60, 40), Image.Resampling.BICUBIC)
BITS, LIGHT, PALETTE, CMYK = (RGB.convert(mode) for mode in ("1", "L", "P", "CMYK"))
ALPHA = Image.merge("RGBA", (*RGB.split(), LIGHT))
WIDE = Image.fromarray(np.array(LIGHT, np.uint16) * 257)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # the orientation: by 90 degrees


def saved(image, form, **options):
    file = io.BytesIO()
    image.copy().save(file, form, **options)  # Pillow leaves the options of a JPEG in its image
    return file.getvalue()


def scaled(most, image=RGB):
    return np.array(image, int) * most // 255


def pnm(most, image=RGB):
    head = b"P%d %d %d %d\n" % (6 if image is RGB else 5, *image.size, most)
    return head + scaled(most, image).astype(np.uint8 if most < 256 else ">u2").tobytes()


def wide_png(pixels):
    """With 16 bits a colour, which Pillow does not write."""
    data = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels))
    head = struct.pack(">IIBB3x", *RGB.size, 16, 2)
    chunks = [b"IHDR" + head, b"IDAT" + data, b"IEND"]
    ends = [struct.pack(">I", zlib.crc32(it)) for it in chunks]
    whole = [
        struct.pack(">I", len(it) - 4) + it + end for it, end in zip(chunks, ends, strict=True)
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(whole)


PROFILES = map(ImageCms.createProfile, ("sRGB", "LAB"))
INKS = saved(CMYK, "JPEG", quality=90)
ADOBE = INKS.index(b"Adobe")
USUAL = {
    "baseline.jpg": saved(RGB, "JPEG", quality=90),
    "progressive.JPEG": saved(RGB, "JPEG", quality=90, progressive=True),
    "turned.jpg": saved(RGB, "JPEG", quality=90, exif=TURNED),
    "444.jpeg": saved(RGB, "JPEG", quality=95, subsampling=0),
    "grey.jpg": saved(LIGHT, "JPEG", quality=90),
    "cmyk.jpg": INKS,
    "picture.png": saved(RGB, "PNG"),
    "png-named.jpg": saved(RGB, "PNG"),
    "palette.png": saved(PALETTE, "PNG"),
    "grey.png": saved(LIGHT, "PNG"),
    "alpha.png": saved(ALPHA, "PNG"),
    "lossless.webp": saved(RGB, "WebP", lossless=True),
    "picture.bmp": saved(RGB, "BMP"),
    "picture.tiff": saved(RGB, "TIFF"),
}
UNUSUAL = {
    "bigtiff.tif": saved(RGB, "TIFF", big_tiff=True),
    "cmyk.tif": saved(CMYK, "TIFF"),
    "bilevel.tif": saved(BITS, "TIFF", compression="group4"),
    "two images.tif": saved(RGB, "TIFF", save_all=True, append_images=[ALPHA]),
    "ycck.jpg": INKS[: ADOBE + 11] + b"\2" + INKS[ADOBE + 12 :],
    "turned.png": saved(RGB, "PNG", exif=TURNED),
    "turned.webp": saved(RGB, "WebP", exif=TURNED),
    "transparent index.png": saved(PALETTE, "PNG", transparency=3),
    "transparent colour.png": saved(RGB, "PNG", transparency=(1, 2, 3)),
    "grey alpha.png": saved(ALPHA.convert("LA"), "PNG"),
    "bilevel.png": saved(BITS, "PNG"),
    "film.webp": saved(ALPHA, "WebP", save_all=True, append_images=[RGB]),
    "palette.bmp": saved(PALETTE, "BMP"),
    "bilevel.pbm": saved(BITS, "PPM"),
    "wide.ppm": pnm(65535),
}
OTHER = {  # the pixels that DALI delivers, or the mean and the largest difference from Pillow's
    **{f"turned {it}.tif": (saved(RGB, "TIFF", tiffinfo={274: it}), RGB) for it in range(2, 9)},
    **{f"{it}.ppm": (pnm(it), scaled(it)) for it in (1, 100, 254)},
    **{f"{it}.ppm": (pnm(it), scaled(it) >> 8) for it in (256, 1023, 32767)},
    "100.pgm": (pnm(100, LIGHT), scaled(100, LIGHT)),
    "1023.pgm": (pnm(1023, LIGHT), scaled(1023, LIGHT) >> 8),
    "wide.pgm": (pnm(65535, LIGHT), LIGHT),
    "text.ppm": (b"P3\n2 1\n100\n0 10 20 30 40 100\n", (0.2, 1)),
    "text of 1000.ppm": (b"P3\n2 1\n1000\n0 100 200 300 400 1000\n", [[[0, 0, 0], [1, 1, 3]]]),
    "grey of 16 bits.png": (saved(WIDE, "PNG"), LIGHT),
    "grey of 16 bits.tif": (saved(WIDE, "TIFF"), LIGHT),
    "colour of 16 bits.png": (wide_png(scaled(21845)), (1, 1)),
    "float.tif": (saved(Image.fromarray(np.array(LIGHT) / np.float32(255)), "TIFF"), LIGHT),
    "palette.tif": (saved(PALETTE, "TIFF"), (0.5, 1)),
    "ycbcr.tif": (saved(RGB.convert("YCbCr"), "TIFF"), (0.5, 1)),
    "lab.tif": (
        saved(ImageCms.profileToProfile(RGB, *PROFILES, outputMode="LAB"), "TIFF"),
        (15, 90),
    ),
    "grey alpha.tif": (saved(RGB.convert("LA"), "TIFF"), (50, 255)),
    "no adobe.jpg": (INKS[: ADOBE - 4] + INKS[ADOBE + 12 :], (130, 255)),
}
REFUSED = {
    "bilevel.tif": saved(BITS, "TIFF"),
    "int32.tif": saved(LIGHT.convert("I"), "TIFF"),
    "turned.webp": saved(RGB, "WebP", exif=TURNED, lossless=True),
    "gif.jpg": saved(RGB, "GIF"),
    "avif.jpg": saved(RGB, "AVIF"),
}


def both(root, files):
    """The pixels of files from us, and from Pillow, in the order of their names."""
    (root / "c").mkdir()
    for name, data in files.items():
        (root / "c" / name).write_bytes(data)
    theirs = decoded(root)
    return delivered(root, preset=presets.RAW), theirs


@pytest.mark.parametrize("files", [USUAL, pytest.param(UNUSUAL, marks=DALI)], ids=len)
def test_files_of_all_kinds_are_decoded_as_by_pillow(files, tmp_path):
    pairs = zip(sorted(files), *both(tmp_path, files), strict=True)
    assert [name for name, ours, theirs in pairs if not np.array_equal(ours, theirs)] == []


@DALI
@pytest.mark.parametrize("name", OTHER)
def test_files_that_dali_decodes_otherwise_differ_as_documented(name, tmp_path):
    data, expected = OTHER[name]
    ours, theirs = both(tmp_path, {name: data})
    if isinstance(expected, tuple):
        found = difference(ours, theirs)
        assert 0 < found.mean <= expected[0]
        assert found.most <= expected[1]
    else:
        assert (ours[0] == np.atleast_3d(expected)).all()
        assert not np.array_equal(ours[0], theirs[0])


@DALI
@pytest.mark.parametrize("name", REFUSED)
def test_files_that_dali_does_not_decode_are_an_error_with_their_name(name, tmp_path, capfd):
    with pytest.raises(RuntimeError, match="decoders") as raised:
        both(tmp_path, {name: REFUSED[name]})
    assert name in str(raised.value.__notes__)
