"""verify --bytes: compares the bytes on the device with those of the files."""

import os
import re
from dataclasses import replace

import numpy as np

import bmap_tools
from bmap_tools import comparison
from tests.kit.bmap.command import entries, fill, load, refused, says, tool
from tests.kit.bmap.files import as_nobody
from tests.kit.devices import loop_device, mounted, require, run


def test_comparing_bytes_without_permission_fails_with_a_remedy(public):
    fill(public)
    bmap = public / "out" / "bmap.json"
    with as_nobody():
        assert tool("create", public, "-o", bmap) == 0
        assert tool("verify", bmap) == 0
        said = says(2, "verify", bmap, "--bytes")
    assert "run as root or as a member of its group, or give an image of it with --uri" in said


def flip(image, offset):
    with open(image, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_byte_changed_behind_the_file_systems_back_is_found(mapped, made):
    root, bmap = mapped
    (root / "c0" / "00.jpg").read_bytes()  # the page cache holds the right bytes
    [[_, physical, _]] = entries(bmap)["c0/00.jpg"][4]
    # In the image: the device's own page cache may hold neighbours from before the file was there.
    flip(made.image, physical + 12_345)
    assert tool("verify", bmap) == 0
    said = says(1, "verify", bmap, "--bytes")
    assert f"byte 12345 differs on the device (byte {physical + 12_345} of {made.device})" in said
    assert "1 of 12 files" in said


def test_the_bytes_are_those_of_the_device_that_the_files_are_on_now(tmp_path, bmap):
    require("mkfs.ext4", "losetup")
    image, copy, mount = tmp_path / "image", tmp_path / "copy", tmp_path / "mnt"
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    with loop_device(image) as old:
        run("mkfs.ext4", "-q", "-F", old)
        with mounted(old, mount):
            fill(mount, (50_000,))
            assert tool("create", mount, "-o", bmap) == 0
    [[_, physical, _]] = entries(bmap)["c0/00.jpg"][4]
    run("cp", str(image), str(copy))
    run("losetup", old, str(copy))  # the same UUID at the name that the map has
    try:
        with loop_device(image) as new, mounted(new, mount):
            assert load(bmap)["device"]["path"] == old != new
            flip(copy, physical + 77)
            assert tool("verify", bmap, "--bytes") == 0
            assert tool("verify", bmap, "--bytes", "--uri", old) == 1
            (mount / "c0" / "00.jpg").read_bytes()  # the page cache holds the right bytes
            flip(image, physical + 99)
            said = says(1, "verify", bmap, "--bytes")
            assert f"byte 99 differs on the device (byte {physical + 99} of {new})" in said
    finally:
        run("losetup", "--detach", old)


def content_of(loaded, file):
    with open(os.path.join(loaded.root, loaded.name(file)), "rb") as opened:
        return opened.read()


def test_a_map_that_takes_data_for_a_hole_is_found(mapped):
    _, bmap = mapped
    loaded = bmap_tools.load(bmap)
    assert len(loaded.extents) == len(loaded) == 12
    extents = loaded.extents[1:].copy()  # the first file is all hole
    extents[0, 1] = -1  # the second was never written
    loaded = replace(
        loaded, extents=extents, extent_offsets=np.maximum(loaded.extent_offsets - 1, 0)
    )
    bmap_tools.save(loaded, bmap)
    assert says(1, "verify", bmap).count("extents: they have moved") == 2
    differences = comparison.compare(
        loaded, np.arange(12), loaded.root, loaded.device.path, 2, lambda done: None
    )
    assert differences.keys() == {0, 1}
    for file, why in differences.items():
        first = content_of(loaded, file).translate(None, b"\0")[0]
        offset = content_of(loaded, file).index(first)
        assert why == (
            f"byte {offset} differs on the device (in a hole of the map, which reads as zeros)"
        )


def test_bytes_in_holes_are_compared(root, bmap):
    with open(root / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"x" * 4096)
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
    (root / "hole").touch()
    os.truncate(root / "hole", 12_345)
    assert tool("create", root, "-o", bmap) == 0
    assert tool("verify", bmap, "--bytes") == 0


def test_an_image_that_ends_too_early_is_a_short_read(mapped, made, tmp_path):
    _, bmap = mapped
    with open(made.image, "rb") as image:
        (tmp_path / "short").write_bytes(image.read(65536))
    said = refused("verify", bmap, "--bytes", "--uri", tmp_path / "short")
    assert re.search(r"short: short read: 0 of \d+ bytes at offset \d+", said)
