"""Dumps of DALI's parser and the record of their origin: damaged or foreign ones are refused."""

import json
import re
from contextlib import suppress

import numpy as np
import pytest

from bmap_tools import atomic
from dali_storage.formats.coco import dump, origin
from dali_storage.formats.coco.annotations import CocoCatalog
from dali_storage.formats.coco.options import CocoOptions
from dali_storage.formats.coco.origin import Source
from dali_storage.formats.files import LOCAL


def ints(*values, kind="<i4"):
    """A number of values, and their bytes."""
    return len(values), np.array(values, kind).tobytes()


def rle(height, width, *runs):
    """One mask of pixels."""
    head = np.array([height, width, len(runs)], "<u8").tobytes()
    return 1, head + np.array(runs, "<u4").tobytes()


def polygons(*rows):
    """The object of each polygon, and its first and last vertex."""
    return len(rows), np.array(rows, "<i4").tobytes()


def vertices(values):
    return len(values) // 2, np.array(values, "<f4").tobytes()


def write(folder, **files):
    """A dump of two images, with two objects and one; files replace its own, or are left out."""
    content = {
        "counts": ints(2, 1),
        "offsets": ints(0, 2),
        "labels": ints(1, 2, 1),
        "boxes": (12, np.arange(12, dtype="<f4").tobytes()),
        "original_ids": ints(7, 9),
        "polygons_count": ints(1, 1, kind="<i8"),
        "polygon_offset": ints(0, 1, kind="<i8"),
        "polygon_data": polygons([1, 0, 3], [0, 0, 3]),
        "vertices_count": ints(3, 3, kind="<i8"),
        "vertices_offset": ints(0, 3, kind="<i8"),
        "vertices": vertices([1, 1, 3, 1, 3, 3] * 2),
        "heights": ints(4, 4),
        "widths": ints(5, 5),
        "mask_count": ints(1, 0, kind="<i8"),
        "masks_offset": ints(0, 1, kind="<i8"),
        "masks_rles_idx": ints(0),
        "masks_rles": rle(4, 5, 12, 8),
    } | files
    folder.mkdir()
    (folder / "filenames.dat").write_bytes(b"a b.jpg\nc.jpg\n")
    for name, given in content.items():
        if given is not None:
            count, values = given
            (folder / f"{name}.dat").write_bytes(count.to_bytes(4, "little") + values)
    return str(folder)


def read(folder, **options):
    return dump.read("this dump", dump.load(folder), CocoOptions(**options))


def same(folder, options, source=None):
    return origin.require_same(folder, dump.load(folder), options, source)


def test_a_dump_is_read_line_by_line(tmp_path):
    names, found = read(write(tmp_path / "d"), polygon_masks=True, image_ids=True)
    assert names == [b"a b.jpg", b"c.jpg"]
    catalog = CocoCatalog.of(names, b"/data", found)
    assert catalog.path(0) == b"/data/a b.jpg"
    boxes, labels = found.objects.of(np.array([1, 0, 1]))
    assert [np.asarray(each).shape for each in boxes] == [(1, 4), (2, 4), (1, 4)]
    assert [np.asarray(each).tolist() for each in labels] == [[1], [1, 2], [1]]
    boxes[0][0, 0] = -1  # which is no view of the columns
    assert found.objects.columns[0].min() == 0


def damaged():
    """A file of the dump, its content, and the words of the error."""
    for name in ("labels", "boxes", "counts", "offsets", "original_ids", "heights", "widths"):
        yield name, None, "is missing, and should have"
    for name in ("polygon_data", "vertices", "polygons_count", "vertices_offset", "masks_rles_idx"):
        yield name, None, "is missing, and should have"
    yield "labels", (3, bytes(11)), "has 15 bytes, but should have 16"
    yield "labels", (2, bytes(8)), "has 2 entries, but should have 3"
    yield "counts", ints(4, -1), "does not match"
    yield "offsets", ints(0, 1), "does not match"
    for wrong in ([2, 0, 3], [-1, 0, 3], [0, 0, 4], [0, 2, 1], [0, -1, 2]):
        words = "has objects or vertices outside of the sample"
        yield "polygon_data", polygons(wrong, [0, 0, 3]), words
    yield "masks_rles", None, "has 0 entries in 4 bytes, but should have 1"
    yield "masks_rles", (1, bytes(20)), "has 24 bytes, but should have more"
    of_another = r"RLE of object 0 of 'a b.jpg' .* size \[{}, {}\], .*\[4, 5\]"
    for size in ([5, 4], [4, 6]):
        yield "masks_rles", rle(*size, 20), of_another.format(*size)
    yield "masks_rles", rle(4, 5, 19), "has 19 pixels"
    yield "masks_rles_idx", ints(2), "objects outside of the sample"
    for far in (4e8, -2e6, np.inf, np.nan):
        words = r"a polygon of 'a b.jpg' has the vertex \[3.0, .*\], farther away than 1,000,000"
        yield "vertices", vertices([1, 1, 3, far, 3, 3] * 2), words
    yield "widths", ints(0, 5), "has a size below 1"
    words = r"'c.jpg' has the size \[4, 536870912\], and masks have at most 1,073,741,8"
    yield "widths", ints(5, 2**29), words
    yield "labels", ints(1, -2, 1), "a label is below 0"


@pytest.mark.parametrize(("name", "content", "words"), [*damaged()])
def test_a_damaged_dump_is_refused_with_its_file(name, content, words, tmp_path):
    folder = write(tmp_path / "d", **{name: content})
    with pytest.raises(ValueError, match=rf"^this dump: .*{words}.*; ") as info:
        read(folder, pixelwise_masks=True, image_ids=True)
    assert re.search(r"'a b.jpg'|'c.jpg'|\w\.dat|label", str(info.value))


@pytest.mark.parametrize("names", [b"", b"a.jpg", b"a.jpg\nb.jpg", b"a.jpg\n", b"\na.jpg\n"])
def test_a_dump_that_lacks_names_is_refused(names, tmp_path):
    folder = write(tmp_path / "d")
    (tmp_path / "d/filenames.dat").write_bytes(names)
    with pytest.raises(ValueError, match=r"this dump: (filenames|counts)\.dat .*; make the"):
        read(folder)


def test_a_dump_that_is_not_there_is_an_error_of_the_system(tmp_path):
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError) as info:
            dump.load(str(folder))
        assert str(info.value.filename) in (str(folder), str(folder / "filenames.dat"))


def test_a_dump_without_objects_needs_no_files_of_them(tmp_path):
    nothing = (2, bytes(8))
    folder = write(tmp_path / "d", counts=nothing, offsets=nothing, labels=None, boxes=None)
    boxes, labels = read(folder)[1].objects.of(np.array([0, 1]))
    assert [np.asarray(it).shape for it in (*boxes, *labels)] == [(0, 4), (0, 4), (0,), (0,)]


def test_relative_vertices_are_far_in_pixels(tmp_path):
    folder = write(tmp_path / "d", vertices=vertices([1, 1, 3, 2.5e5, 3, 3] * 2))
    read(folder, pixelwise_masks=True)
    with pytest.raises(ValueError, match=r"'a b.jpg' has the vertex \[3.0, 250000.0\], farther"):
        read(folder, pixelwise_masks=True, ratio=True)


def test_an_outline_has_a_longest_length(tmp_path):
    far = vertices([1, 1, 3, 1, 3, 3] + [9e5, 0, -9e5, 0] * 6)
    content = {"vertices_count": ints(3, 12, kind="<i8"), "vertices": far}
    for last in (6, 12):
        content["polygon_data"] = polygons([1, 0, 3], [0, 0, last])
        folder = write(tmp_path / str(last), **content)
        if last == 6:
            read(folder, pixelwise_masks=True)
    with pytest.raises(ValueError, match=r"'c.jpg' is 19,800,000 pixels long, above 10,000,000"):
        read(folder, pixelwise_masks=True)


@pytest.fixture
def saved(tmp_path):
    """A dump with a record of what it was made of, and the JSON file."""
    source = Source(bytes(tmp_path / "a.json"), LOCAL)
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "made").mkdir()
    (tmp_path / "made/original_ids.dat").write_text("of another dump")
    content = dump.load(write(tmp_path / "d", original_ids=None))
    options = CocoOptions(ratio=True, polygon_masks=True, images=(b"a b.jpg", b"c.jpg"))
    state = source.state() | {"checksum": 0xA3_0A_D7_4B}
    origin.save(str(tmp_path / "made"), content, options, state)
    return str(tmp_path / "made"), source


def test_a_record_says_what_a_dump_was_made_of(saved, tmp_path):
    folder, source = saved
    for given in ({}, {"ratio": True}, {"images": ["a b.jpg", "c.jpg"]}, {"include_iscrowd": True}):
        assert same(folder, CocoOptions.of(given, given), source).ratio
    assert not (tmp_path / "made/original_ids.dat").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ltrb": True}, "made with ltrb=False, not True; leave out ltrb,"),
        ({"images": ["c.jpg"]}, r"images=\['a b.jpg', 'c.jpg'\], not \['c.jpg'\]"),
        ({"include_iscrowd": False}, "include_iscrowd=True, not .* leave out include_iscrowd"),
        ({"avoid_class_remapping": True}, "avoid_class_remapping"),
        ({"size_threshold": 5.0}, "size_threshold=0.1, not 5.0"),
        ({"ratio": False}, "ratio=True, not False"),  # explicit
    ],
)
def test_other_options_than_those_of_a_dump_are_refused(options, words, saved, tmp_path):
    with pytest.raises(ValueError, match=words):
        same(saved[0], CocoOptions.of(options, options))
    of_dali = write(tmp_path / "dali")
    with pytest.raises(ValueError, match=f"{next(iter(options))}=.* cannot be given with prepro"):
        same(of_dali, CocoOptions.of(options, options))
    assert same(of_dali, CocoOptions(image_ids=True)) == CocoOptions(image_ids=True)


@pytest.mark.parametrize("name", ["image_ids", "pixelwise_masks"])
def test_an_output_that_a_dump_lacks_is_named_with_its_option(name, saved):
    option = "--" + name.replace("_", "-")
    with pytest.raises(ValueError, match=f"made without {name}; .* index --coco .* {option}"):
        same(saved[0], CocoOptions(**{name: True}))


def test_other_annotations_than_those_of_a_dump_are_refused(saved, tmp_path):
    folder, source = saved
    (tmp_path / "a.json").write_text("[]")
    record = tmp_path / "made/made_of.json"
    unknown = json.dumps(json.loads(record.read_text()) | {"annotations": {}})
    for text in (record.read_text(), unknown):
        record.write_text(text)
        with pytest.raises(ValueError, match=r"is not the source of preprocessed_annotations="):
            same(folder, CocoOptions(), source)
    with pytest.raises(ValueError, match=r"annotations_file=.* cannot be given with"):
        same(write(tmp_path / "dali"), CocoOptions(), source)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("labels.dat", "", "labels.dat has changed since the dump was made"),
        ("original_ids.dat", "", "original_ids.dat has changed"),
        ("boxes.dat", None, "boxes.dat has changed"),
        ("made_of.json", "{}", "is incomplete"),
        ("made_of.json", "{", "is incomplete"),
        ("made_of.json", "[" * 10**5, "is incomplete"),
        ("made_of.json", "[]", "is incomplete"),
        ("made_of.json", '{"version": 9}', "or not of version 1"),
    ],
)
def test_a_dump_that_was_changed_is_refused(name, content, words, saved, tmp_path):
    if content is None:
        (tmp_path / "made" / name).unlink()
    else:
        (tmp_path / "made" / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{words}.*python -m dali_storage index --coco"):
        same(saved[0], CocoOptions())


@pytest.mark.parametrize("fails", [False, True])
def test_dumps_that_are_written_at_once_are_never_mixed(fails, saved, tmp_path, monkeypatch):
    """Another one comes in the middle of each file; it ends, or is killed in the middle, too."""
    other = dump.load(write(tmp_path / "other", labels=(3, bytes(12))))
    content, target = dump.load(saved[0]), str(tmp_path / "made")
    for name in ("filenames.dat", "labels.dat", "masks_rles_idx.dat", origin._FILE):

        def replacing(path, name=name):
            if path.endswith(name):
                monkeypatch.setattr(origin, "replacing", atomic.replacing if not fails else killed)
                with suppress(KeyboardInterrupt):
                    origin.save(target, other, CocoOptions(), {})
                monkeypatch.setattr(origin, "replacing", atomic.replacing)
            return atomic.replacing(path)

        def killed(path, name=name):
            if path.endswith(name):
                raise KeyboardInterrupt
            return atomic.replacing(path)

        monkeypatch.setattr(origin, "replacing", replacing)
        origin.save(target, content, CocoOptions(ltrb=True), {})
        for ltrb, wanted in ((True, content), (False, other)):
            with suppress(ValueError):
                same(target, CocoOptions.of({"ltrb": ltrb}, ["ltrb"]))
                assert dump.load(target) == wanted
        origin.save(target, content, CocoOptions(), {})  # by ranks: all of them write the same
        assert same(target, CocoOptions())
