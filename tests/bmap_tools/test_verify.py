"""verify: finds every kind of change."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.kit.bmap.command import fill, refused, rewrite, says, settle, tool
from tests.kit.bmap.files import as_nobody, fragment
from tests.kit.devices import disk, mounted
from tests.kit.layouts import defragment


def test_verify_says_that_all_files_are_as_mapped(mapped):
    root, bmap = mapped
    assert "12 of 12 files are as mapped" in says(0, "verify", bmap)
    said = says(0, "verify", bmap, "--bytes", "--root", root, "--sample", 5)
    assert "5 of 12 files are as mapped" in said


def put_another(path):
    shutil.copy2(path, path.with_suffix(".new"))
    os.rename(path.with_suffix(".new"), path)


def replace_by_directory(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "how"),
    [
        (rewrite, r"mtime \d+, not \d+, ctime \d+, not \d+$"),
        (lambda path: os.truncate(path, 49_999), r"size 49999, not 50000, mtime"),
        (put_another, r"inode \d+, not \d+, ctime .*extents: they have moved$"),
        (lambda path: os.utime(path), r"mtime \d+, not \d+, ctime"),
        (lambda path: path.chmod(0o600), r"ctime \d+, not \d+$"),
        (Path.unlink, "missing: No such file or directory$"),
        (replace_by_directory, "extents: it is not a regular file$"),
    ],
)
def test_a_changed_file_is_found(mapped, change, how):
    root, bmap = mapped
    change(root / "c1" / "03.jpg")
    said = says(1, "verify", bmap)
    assert "1 of 12 files are not as mapped" in said
    assert re.search(rf"^  c1/03\.jpg: .*{how}", said, re.MULTILINE)
    assert f"renew the map: python -m bmap_tools create {root} -o {bmap}" in said


def test_unreadable_files_cannot_be_verified(public):
    fill(public, (5000, 5000))
    for name, size in (("secret", 5000), ("hole", 0)):
        (public / name).write_bytes(b"x" * size)
        (public / name).chmod(0)
    bmap = public / "out" / "bmap.json"
    assert tool("create", public, "-o", bmap) == 0
    with as_nobody():
        said = says(1, "verify", bmap)
    assert "2 of 4 files are not as mapped" in said
    for name in ("secret", "hole"):
        assert f"  {name}: extents: Permission denied\n" in said


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_defragmenting_is_found_though_it_leaves_no_trace_in_the_status(
    tmp_path, bmap, file_system
):
    with disk(tmp_path, file_system) as made:
        for name in ("many", "other"):
            fragment(made.mount / name, 300)
        os.sync()
        settle()
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        defragment(made.mount / "many")
        said = says(1, "verify", bmap)
        assert "1 of 2 files are not as mapped" in said.replace("of 3", "of 2")
        assert "  many: extents: they have moved\n" in said


def test_a_sample_is_random_and_depends_on_the_seed(mapped):
    root, bmap = mapped
    for path in root.glob("*/*"):
        path.chmod(0o600)
    seen = []
    for seed in (1, 1, 2, 3):
        said = says(1, "verify", bmap, "--sample", 4, "--seed", seed)
        assert "4 of 4 files are not as mapped" in said
        seen.append(re.findall(r"c\d/\d\d\.jpg", said))
    assert seen[0] == seen[1]
    assert len({tuple(names) for names in seen}) > 1


def test_the_same_tree_on_another_device_is_not_the_maps(mapped, tmp_path):
    root, bmap = mapped
    (tmp_path / "other").mkdir()
    with disk(tmp_path / "other", "ext4") as other:
        shutil.copytree(root, other.mount / "root")
        said = says(1, "verify", bmap, "--root", other.mount / "root")
        assert "is not on the device of" in said
        assert re.search("UUID of the file system: .*, not ", said)
        said = says(2, "verify", bmap, "--bytes", "--uri", other.device)
        assert f"{other.device} does not hold the map's file system" in said


def test_the_same_file_system_mounted_elsewhere_is_the_maps(mapped, made, tmp_path):
    _, bmap = mapped
    with mounted(made.device, tmp_path / "again"):
        assert tool("verify", bmap, "--root", tmp_path / "again" / "root", "--bytes") == 0


def test_a_missing_directory_or_a_wrong_image_is_refused(mapped, tmp_path):
    _, bmap = mapped
    (tmp_path / "image").write_bytes(bytes(1 << 20))
    assert "x: No such file" in refused("verify", bmap, "--root", tmp_path / "x")
    assert "does not hold" in refused("verify", bmap, "--bytes", "--uri", tmp_path / "image")
    assert "y: No such file" in refused("verify", bmap, "--bytes", "--uri", tmp_path / "y")
