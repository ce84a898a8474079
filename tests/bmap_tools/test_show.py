"""show: what it prints, against plain JSON and filefrag."""

import os
import re
from dataclasses import replace

import numpy as np

import bmap_tools
from tests.kit.bmap.command import entries, refused, says, shows, tool
from tests.kit.bmap.files import filefrag, fragment
from tests.kit.devices import disk, run


def test_show_prints_a_summary(mapped, made):
    root, bmap = mapped
    fragment(root / "many", 200)
    (root / "empty").mkdir()
    (root / "c0" / "dangling").symlink_to("nowhere")
    (root / "c0" / "nothing").touch()
    with open(root / "c0" / "holes", "wb") as file:
        file.truncate(1 << 20)
        os.posix_fallocate(file.fileno(), 1 << 20, 1 << 20)
    run("fallocate", "--keep-size", "--length", "3MiB", str(root / "c0" / "00.jpg"))
    block = os.statvfs(root).f_frsize
    reserved = (3 << 20) - -(-50_000 // block) * block
    assert tool("create", root, "-o", bmap) == 1
    shown = shows(bmap)
    files = entries(bmap)
    counts = [
        sum(extent[0] < rest[0] for extent in rest[4])
        for rest in files.values()
        if isinstance(rest[4], list)
    ]
    total = sum(rest[0] for rest in files.values())
    assert f"device       {made.device}, {320 << 20:,} bytes, LBAs of 512 bytes" in shown
    assert f"backing      {made.image}" in shown
    assert re.search(r"classes +3\n", shown)
    assert re.search(rf"files +{len(files)}, {total:,} bytes\n", shown)
    assert re.search(rf"extents +{sum(counts):,}, ", shown)
    assert re.search(rf"unwritten +{1 << 20:,} bytes", shown)
    assert re.search(rf"holes +{1 << 20:,} bytes", shown)
    assert re.search(rf"reserved +{reserved:,} bytes", shown)
    contiguous = counts.count(1) / sum(count > 0 for count in counts)
    assert re.search(rf"contiguous +{contiguous:.1%} of the files that have extents, ", shown)
    assert re.search(r"\n +0 +1 +#+\n +1 +13 +#{40}\n", shown)
    assert re.search(r"\n +129 to 256 +1 +#+\n", shown)
    assert (
        "not mapped, to be read as files: 1\n  1: No such file or directory\n    c0/dangling"
        in (shown)
    )


def test_show_prints_the_extents_of_a_file_with_the_lbas_of_the_disk(tmp_path, bmap):
    with disk(tmp_path, "ext4", sector=4096, partition=True) as made:
        path = made.mount / "file name"
        path.write_bytes(b"x" * 5000)
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 8192, 4096)
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        (_, physical, _, _), *_ = filefrag(path)
        for name in ("file name", str(path)):
            shown = shows(bmap, name)
            lba = ((1 << 20) + physical) // 4096
            assert re.search(rf"\n +0 +{physical} +8192  {lba} to {lba + 1}\n", shown)
            assert re.search(r"\n +8192 +unwritten +4096\n", shown)
            assert f"LBAs of {made.disk}" in shown
            assert "size    12,288 bytes" in shown


def test_show_of_a_file_that_is_not_mapped_or_not_in_the_map(mapped):
    root, bmap = mapped
    (root / "dangling").symlink_to("nowhere")
    assert tool("create", root, "-o", bmap) == 1
    assert "not mapped, to be read as a file: No such file" in shows(bmap, "dangling")
    for name in ("c0", "c0/00.jp", "0/00.jpg", ""):
        said = refused("show", bmap, name)
        assert f"has no file {name}; give its path from {root}" in said


def test_control_characters_of_a_map_are_shown_as_escapes(mapped):
    _, bmap = mapped
    loaded = bmap_tools.load(bmap)
    loaded = replace(
        loaded,
        device=replace(loaded.device, serial="\x1b[31m"),
        extents=loaded.extents[1:],
        extent_offsets=np.maximum(loaded.extent_offsets - 1, 0),
        unmapped={0: "because\x1b]0;\a\n"},
    )
    bmap_tools.save(loaded, bmap)
    shown, said = shows(bmap), says(1, "verify", bmap)
    assert "serial       \\x1b[31m\n" in shown
    assert "  1: because\\x1b]0;\\x07\\n\n" in shown
    assert ", not \\x1b[31m\n" in said
    assert "\x1b" not in shown + said
