"""create: the map has the extents that filefrag prints, and the bytes are there in the image."""

import os

import pytest

from tests.kit.bmap.command import entries, fill, load, refused, says, through_the_image, tool
from tests.kit.bmap.files import UNWRITTEN, as_nobody, filefrag
from tests.kit.devices import disk, mounted, run
from tests.kit.layouts import make_hostile_files
from tests.kit.process import leased


def test_a_map_has_the_status_and_the_extents_of_every_file(made, root, bmap):
    """Of holes, of reserved space that holds old data, and of hundreds of pieces."""
    make_hostile_files(root / "c0")
    fill(root, (700, 9000), classes=3)
    assert tool("create", root, "-o", bmap) == 0
    content, files, found = load(bmap), entries(bmap), through_the_image(made, bmap)
    assert (content["format"], content["version"], content["root"]) == ("bmap", 1, str(root))
    assert content["directories"] == ["c0", "c1"]
    assert content["device"]["path"] == made.device
    assert content["device"]["backing_file"] == str(made.image)
    uuid = run("blkid", "-p", "-o", "value", "-s", "UUID", made.device)
    assert content["file_system"]["uuid"] == uuid
    paths = [path for path in root.rglob("*") if path.is_file()]
    assert len(files) == len(paths)
    for path in paths:
        name, status = str(path.relative_to(root)), path.stat()
        known = [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
        assert files[name][:4] == known
        assert found[name] == path.read_bytes()
        rows = filefrag(path)
        if not any(flags & UNWRITTEN for *_, flags in rows):
            assert files[name][4] == [list(row[:3]) for row in rows]
    assert len(files["c0/interleaved1"][4]) >= 200
    assert files["c0/hole-only"][4] == []
    assert {physical for _, physical, _ in files["c0/preallocated"][4]} == {None}
    *_, (start, physical, length) = files["c0/size4097"][4]
    assert (start + length, physical) == (1 << 20, None)


@pytest.mark.parametrize(("file_system", "sector"), [("ext4", 512), ("xfs", 4096)])
def test_a_map_has_the_start_of_a_partition(tmp_path, bmap, file_system, sector):
    with disk(tmp_path, file_system, sector=sector, partition=True) as made:
        paths = fill(made.mount / ".", (5000, 70_000))
        assert tool("create", made.mount, "-o", bmap) in (0, 1)
        content = load(bmap)
        assert content["device"]["start"] == 1 << 20
        assert content["device"]["logical_block_size"] == sector
        found = through_the_image(made, bmap)
        for path in paths:
            assert found[str(path.relative_to(made.mount))] == path.read_bytes()
        assert tool("verify", bmap, "--bytes") == 0
        for uri in (made.device, made.disk, made.image):
            assert tool("verify", bmap, "--bytes", "--uri", uri) == 0


def test_names_in_a_map_may_be_any_bytes(root, bmap):
    names = [b"a b", b"new\nline", b"\xff\xfe", "\u00fc".encode(), b"quote\"'", b"-o"]
    for name in names:
        directory = os.path.join(os.fsencode(root), b"c " + name)
        os.mkdir(directory)
        with open(os.path.join(directory, name), "wb") as file:
            file.write(name)
    assert tool("create", root, "-o", bmap) == 0
    expected = sorted(b"c " + name + b"/" + name for name in names)
    assert [os.fsencode(name) for name in entries(bmap)] == expected
    assert tool("verify", bmap, "--bytes") == 0


def test_the_map_itself_is_not_in_the_map(root):
    fill(root)
    for _ in range(2):  # the second time it is there already
        assert tool("create", root, "-o", root / "bmap.json") == 0
        assert "bmap.json" not in entries(root / "bmap.json")
    assert tool("verify", root / "bmap.json") == 0


def test_files_that_cannot_be_mapped_are_listed_and_marked(root, bmap):
    fill(root, (5000, 5000))
    os.mkfifo(root / ".fifo")
    (root / "c0" / "fifo").symlink_to("../.fifo")
    (root / "c0" / "dangling").symlink_to("nowhere")
    (root / "c0" / "circle").symlink_to("circle")
    (root / "c1" / "device").symlink_to("/dev/null")
    said = says(1, "create", root, "-o", bmap)
    files = entries(bmap)
    reasons = {name: rest[4] for name, rest in files.items() if isinstance(rest[4], str)}
    assert reasons == {
        "c0/fifo": "it is not a regular file",
        "c0/dangling": "No such file or directory",
        "c0/circle": "Too many levels of symbolic links",
        "c1/device": "it is not a regular file",
    }
    assert files["c0/fifo"][1] == (root / ".fifo").stat().st_ino
    assert files["c0/dangling"][:4] == [0, 0, 0, 0]
    assert len(files["c0/00.jpg"][4]) == 1
    assert "4 of 6 files are not mapped" in said
    assert all(f"  {name}: {why}\n" in said for name, why in reasons.items())
    assert tool("verify", bmap) == 0  # they are as the map says
    assert tool("verify", bmap, "--bytes") == 0


def test_a_file_under_a_lease_is_mapped_when_the_lease_ends(root, bmap):
    fill(root, (5000, 5000))
    with leased(root / "c0" / "00.jpg"):
        says(0, "create", root, "-o", bmap)
    assert len(entries(bmap)["c0/00.jpg"][4]) == 1


def test_create_does_not_map_files_that_it_may_not_read(public):
    fill(public, (5000, 5000))
    (public / "c0" / "secret").write_bytes(b"x" * 77)
    (public / "c0" / "secret").chmod(0)
    bmap, link = public / "out" / "bmap.json", public / "out" / "link"
    link.symlink_to(public / "c1" / "01.jpg")
    with as_nobody():
        for output in (public / "bmap.json", link):
            said = says(2, "create", public, "-o", output)
            assert f"{output}: no permission to write to" in said
        link.unlink()
        said = says(1, "create", public, "-o", bmap)
        assert tool("verify", bmap) == 0
    files = entries(bmap)
    assert list(files) == ["c0/00.jpg", "c0/secret", "c1/01.jpg"]
    assert files["c0/secret"][::4] == [77, "Permission denied"]
    assert len(files["c0/00.jpg"][4]) == 1
    assert load(bmap)["directories"] == ["c0", "c1", "out"]
    assert "  c0/secret: Permission denied\n" in said


def test_no_map_is_written_if_a_directory_cannot_be_listed(public):
    fill(public, (5000, 5000))
    (public / "closed").mkdir(mode=0)
    (public / "c1" / "deep").mkdir()
    (public / "c1").chmod(0o744)  # it may be listed, but nothing in it be looked at
    bmap = public / "out" / "bmap.json"
    bmap.write_text("the old one")
    bmap.chmod(0o666)
    with as_nobody():
        said = says(2, "create", public, "-o", bmap)
    denied = "  c1/deep/: Permission denied\n  closed/: Permission denied\n"
    assert f"these directories could not be listed:\n{denied}bmap_tools: nothing was wri" in said
    assert bmap.read_text() == "the old one"
    assert [path.name for path in bmap.parent.iterdir()] == ["bmap.json"]


def test_another_file_system_below_the_root_is_not_mapped(ext4_root, tmp_path, bmap):
    fill(ext4_root, (5000,))
    with disk(tmp_path, "xfs") as other:
        (other.mount / "file").write_bytes(b"x" * 5000)
        (ext4_root / "linked").symlink_to(other.mount)
        with mounted(other.device, ext4_root / "mounted"):
            said = says(1, "create", ext4_root, "-o", bmap)
            assert tool("verify", bmap) == 0
        files = entries(bmap)
        (ext4_root / "mounted").rmdir()
    for name in ("linked/file", "mounted/file"):
        assert files[name][::4] == [5000, "it is on another file system"]
    assert len(files["c0/00.jpg"][4]) == 1
    assert "mounted/file: it is on another file system" in said


def test_a_root_that_cannot_be_mapped_is_refused_with_the_reason(root, tmp_path, bmap):
    (root / "file").touch()
    (root / "empty").mkdir()
    assert "missing: No such file" in refused("create", root / "missing", "-o", bmap)
    assert "file: Not a directory" in refused("create", root / "file", "-o", bmap)
    assert f"no files below {root}/empty" in refused("create", root / "empty", "-o", bmap)
    run("mount", "-t", "tmpfs", "none", str(root / "empty"))
    try:
        (root / "empty" / "file").touch()
        assert "tmpfs is in memory" in refused("create", root / "empty", "-o", bmap)
    finally:
        run("umount", str(root / "empty"))
    assert not bmap.exists()
