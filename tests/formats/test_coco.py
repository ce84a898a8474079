"""Annotations and dumps that DALI misreads, crashes at, or never returns from: all are refused."""

import copy
import json
import re
from contextlib import suppress

import numpy as np
import pytest

from bmap_tools import atomic
from dali_storage.formats.coco import dump, origin
from dali_storage.formats.coco.annotations import CocoCatalog
from dali_storage.formats.coco.check import check
from dali_storage.formats.coco.options import CocoOptions
from dali_storage.formats.coco.origin import Source
from dali_storage.formats.coco.ragged import Ragged
from dali_storage.formats.files import LOCAL

GONE = object()
POLYGONS, PIXELS = {"polygon_masks": True}, {"pixelwise_masks": True}
DATA = {
    "info": {"year": 2017},
    "images": [
        {"id": 10 + it, "file_name": f"{it}.jpg", "width": 10, "height": 20} for it in range(4)
    ],
    "annotations": [
        {"id": 50 + it, "image_id": 10 + it, "category_id": 5, "bbox": [it, 2, 3, 4.5]}
        | {"iscrowd": 0, "area": 3.5, "segmentation": [[it, 2, 3, 4, 5, 6]]}
        for it in range(4)
    ],
    "categories": [{"id": 5, "name": "a"}, {"id": 2, "name": "b"}],
}
INTEGER = "must be an integer of 32 bits"
NOT_INTEGERS = [2.0, "2", None, True, [2], 2**31, -(2**31) - 1, GONE]


def changed(kind, field, value, number=2):
    """The data with another value in one entry of a list."""
    data = copy.deepcopy(DATA)
    if value is GONE:
        del data[kind][number][field]
    else:
        data[kind][number][field] = value
    return data


def checked(content, **options):
    """What DALI must find."""
    content = content.encode() if isinstance(content, str) else content
    return check("a.json", content.decode("latin-1"), CocoOptions(**options))


def refused(content, **options):
    """The words of the error."""
    content = content if isinstance(content, (bytes, str)) else json.dumps(content)
    with pytest.raises(ValueError) as info:
        checked(content, **options)
    assert str(info.value).startswith("a.json: ")
    assert "; " in str(info.value)  # what to do
    return str(info.value)


def rows():  # noqa: C901
    """Entries: list, field, wrong value, words of the error, options."""
    for value in NOT_INTEGERS:
        yield "annotations", "image_id", value, INTEGER, {}
    for value in (2.0, GONE):
        yield "annotations", "category_id", value, INTEGER, {}
        yield "images", "id", value, f"id {INTEGER}", {}
    for value in (None, True, "2"):
        yield "annotations", "iscrowd", value, "iscrowd must be 0 or 1", {}
    for value in (True, False):
        yield "annotations", "iscrowd", value, f"; write {value:d}$", {}
    boxes = [[1, 2, 3], [1, 2, 3, 4, 5], None, [1, None, 3, 4], "box", True, {}, GONE]
    for value in [*boxes, [1, 2, "3", 4], [1, True, 3, 4]]:
        yield "annotations", "bbox", value, "bbox must be a list of 4 numbers", {}
    flat, half = [1, 2, 3, 4], [[1, 2, 3, 4, 5, 6], "x"]
    for value in (flat, half, [None], [[1, None, 3, 4]], [[1, "2"]], [[{"x": 1}]]):
        for options in (POLYGONS, PIXELS):
            yield "annotations", "segmentation", value, "segmentation must be a list of", options
    odd = "polygon 1 has 3 coordinates, which is odd"
    yield "annotations", "segmentation", [[1, 2], [1, 2, 3]], odd, POLYGONS
    # A text or null behind an RLE kills DALI's reader.
    no_masks = [None, "", 5, True, {}, {"size": [3, 3]}, {"size": [3, 3], "counts": None}]
    no_masks += [{"size": "a", "counts": [9]}, {"size": [3, 3], "counts": [1.0, 8]}]
    no_masks += [{"size": [3, 3], "counts": [-1, 10]}, {"size": [3, 3], "counts": ""}]
    no_masks += [{"size": [3, 0], "counts": [0]}, {"size": [3, -3], "counts": [9]}, GONE]
    # DALI reads on behind a text whose last number has no end.
    no_masks += [{"size": [3, 3], "counts": it} for it in ("9P", "P" * 7 + "0", "9\0", "é", "~")]
    for value in no_masks:
        yield "annotations", "segmentation", value, r"\[\], or an object of size and counts", PIXELS
    for field, value in (("width", 2.0), ("height", True)):
        yield "images", field, value, INTEGER, {}
        for value in (GONE, 0, -1):
            yield "images", field, value, "at least 1, for ratio", {"ratio": True}
            yield "images", field, value, "at least 1, for ratio", PIXELS
    for value in (GONE, "", None, 5, "a\nb", "a\0b"):
        yield "images", "file_name", value, "file_name must be a name without", {}
    yield "images", "file_name", "0.jpg", r"file_name '0.jpg' is also in images\[0\]", {}
    yield "images", "id", 10, r"id 10 is also in images\[0\]", {}
    for value in (2.0, -1, GONE):
        yield "categories", "id", value, f"{INTEGER} other than -1", {}


@pytest.mark.parametrize(("kind", "field", "value", "words", "options"), [*rows()])
def test_a_wrong_value_is_refused_with_its_place(kind, field, value, words, options):
    number = 1 if kind == "categories" else 2
    text = refused(changed(kind, field, value, number), **options)
    assert re.search(words, text), text
    assert f"{kind}[{number}]" in text
    if field != "id":
        assert f"(id {DATA[kind][number]['id']})" in text
    if field not in ("file_name", "id", "segmentation") and value is not GONE:
        assert f"not {value!r}"[:40] in text


NUMBERS = ["NaN", "-Infinity", "1e400", "-1e999", "0e400", "7" * 310, "7" * 5000]


@pytest.mark.parametrize("word", NUMBERS, ids=lambda it: it[:10])
@pytest.mark.parametrize("kind", ["images", "annotations", "categories"])
def test_a_number_that_float64_lacks_is_refused_wherever_it_is(kind, word):
    text = json.dumps(changed(kind, "at", {"area": ["X"]}, 1)).replace('"X"', word)
    found = refused(text)
    assert f"{kind}[1]: {word[:30]} is not a number in JSON" in found
    assert """"area": ['""" in found


@pytest.mark.parametrize("kind", ["images", "annotations", "categories", "info"])
@pytest.mark.parametrize("name", ["id", r"id\u0000x"])
def test_a_field_that_dali_takes_for_another_one_is_refused(kind, name):
    more = f'"{name}": "5", "id": 5, '
    text = re.sub(rf'("{kind}": \[?{{)', rf"\1{more}".replace("\\u", "\\\\u"), json.dumps(DATA))
    assert "is repeated, or has NUL in its name" in refused(text)
    assert "twice, or with NUL" in refused(json.dumps(DATA)[:-1] + f', "{kind}": []}}')


def test_values_are_shown_as_they_are_written():
    data = json.dumps(changed("annotations", "image_id", "é"), ensure_ascii=False)
    assert "not 'é'" in refused(data)


@pytest.mark.parametrize("value", [None, [1], 5, "x"])
@pytest.mark.parametrize("kind", ["images", "annotations", "categories"])
def test_what_is_no_object_is_refused(kind, value):
    data = copy.deepcopy(DATA)
    data[kind][1] = value
    assert f"{kind}[1]: it must be an object, not {value!r}" in refused(data)
    assert f"'[' expected to begin {kind}" in refused(DATA | {kind: value if value != [1] else {}})


def test_a_file_that_is_cut_off_is_refused_wherever_it_is_cut():
    text = json.dumps(DATA, indent=1)
    checked(text)
    for end in range(len(text)):
        assert re.search("truncated or not JSON|it has no images", refused(text[:end])), end


TEXT = json.dumps(DATA)
TEXTS = {
    "more behind the end": (TEXT + "{}", "the end expected after"),
    "a comma too much": (TEXT.replace("]}]", "]},]", 1), "truncated or not JSON"),
    "a list": (json.dumps([DATA]), r"'\{' expected"),
    "a byte order mark": ("\ufeff" + TEXT, "a byte order mark"),
    "single quotes": (TEXT.replace('"', "'"), "not JSON"),
    "half a pair": (TEXT.replace("0.jpg", r"\ud800.jpg"), "one half of a surrogate pair"),
    "the other half": (TEXT.replace('"info"', r'"\\\udc00"'), "one half of a surrogate pair"),
    "a half behind a backslash": (TEXT.replace('"a"', r'"\\ud83d\udc00"'), "one half of a surr"),
    "NaN elsewhere": (TEXT.replace("2017", "NaN"), "info: NaN is not a number in JSON"),
    "a tab in a name": (TEXT.replace("0.jpg", "\t.jpg"), r"images\[0\]: Invalid control"),
    "lists in lists": ('{"info": ' + "[" * 10**5 + "]" * 10**5 + ",", "info: maximum recursion"),
    "no images": ('{"annotations": []}', "it has no images"),
    "nothing": ("", r"'\{' expected .* not the end of the file"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_whole_json_is_refused(name):
    text, words = TEXTS[name]
    assert re.search(words, refused(text))


def test_an_unknown_image_is_refused_by_name():
    assert "images has 'x.jpg', which is not a file_name in the file" in refused(
        DATA, images=(b"1.jpg", b"x.jpg")
    )


def test_what_dali_takes_is_accepted():
    data = copy.deepcopy(DATA)
    data["annotations"][1].pop("iscrowd")
    data["annotations"][1]["image_id"] = 999
    data["annotations"][2] |= {"iscrowd": 1, "segmentation": {"size": [20, 10], "more": 1}}
    data["annotations"][3] |= {"bbox": [1e39, -5, 3, 4], "segmentation": None}
    data["images"][1] |= {"text": "\\ud800 \U0001f600", "file_name": "é\U0001f600.jpg"}
    data["images"][1].pop("width")
    for text in (json.dumps(data), json.dumps(data, ensure_ascii=False)):
        found = checked(text, polygon_masks=True)
        assert found.names == [b"0.jpg", "é\U0001f600.jpg".encode(), b"2.jpg", b"3.jpg"]
        assert found.objects.tolist() == [1, 0, 1, 1]
        assert found.polygons.tolist() == [1, 0, 0, 0]
    data["annotations"][3]["segmentation"] = []
    data["annotations"][2]["segmentation"]["counts"] = "0"
    data["images"][1]["width"] = 5
    checked(json.dumps(data), pixelwise_masks=True, images=(b"0.jpg",))
    names = json.dumps(DATA).encode().replace(b"0.jpg", b"\xff.jpg")  # as file systems have them
    assert checked(names).names[0] == b"\xff.jpg"


def test_annotations_that_dali_loses_are_noticed():
    expected = checked(json.dumps(DATA), polygon_masks=True)
    names = [*reversed(expected.names)]

    def found(starts, labels):
        return Ragged(np.array(starts), np.empty((len(labels), 4)), np.array(labels))

    every = found(range(5), [1] * 4)
    assert expected.lost(names, every, every) is None
    for less in ([0, 1, 1, 2, 3], [0, 0, 1, 2, 3]):
        fewer = found(less, [1] * 3)
        lost = names[np.flatnonzero(np.diff(less) == 0)[0]]
        assert expected.lost(names, fewer, every) == lost
        assert expected.lost(names, every, fewer) == lost
    assert expected.lost(names[1:], found(range(4), [1] * 3), every) == names[0]
    more = found([0, 2, 3, 4, 5], [1, 0, 1, 1, 1])  # one near size_threshold
    assert expected.lost(names, more, every) is None


def test_labels_that_dali_loses_are_noticed():
    data = changed("annotations", "category_id", 2)
    data["annotations"].append(data["annotations"][1] | {"category_id": 777})
    data["categories"].append({"id": 5})  # keeps its number
    images = (b"2.jpg", b"1.jpg", b"2.jpg")
    for more, wanted in (({}, [2, 1, 0, 2]), ({"avoid_class_remapping": True}, [2, 5, 777, 2])):
        expected = checked(json.dumps(data), images=images, **more)
        assert expected.labels.tolist() == wanted
        for wrong, lost in ((None, None), (0, b"2.jpg"), (1, b"1.jpg"), (2, b"1.jpg")):
            labels = np.array(wanted)
            if wrong is not None:
                labels[wrong] = labels[wrong] == 0
            rows = Ragged(np.array([0, 1, 3, 4]), np.empty((4, 4)), labels[[0, 1, 2, 0]])
            assert expected.lost(images, rows, None) == lost


# --- Dumps ---------------------------------------------------------------------------------------


def write(folder, **files):
    """A dump of two images, with two objects and one; files replace its own, or are left out."""
    ints = lambda *values, kind="<i4": (len(values), np.array(values, kind).tobytes())  # noqa: E731
    content = {
        "counts": ints(2, 1),
        "offsets": ints(0, 2),
        "labels": ints(1, 2, 1),
        "boxes": (12, np.arange(12, dtype="<f4").tobytes()),
        "original_ids": ints(7, 9),
        "polygons_count": ints(1, 1, kind="<i8"),
        "polygon_offset": ints(0, 1, kind="<i8"),
        "polygon_data": (2, np.array([[1, 0, 3], [0, 0, 3]], "<i4").tobytes()),
        "vertices_count": ints(3, 3, kind="<i8"),
        "vertices_offset": ints(0, 3, kind="<i8"),
        "vertices": (6, np.array([1, 1, 3, 1, 3, 3] * 2, "<f4").tobytes()),
        "heights": ints(4, 4),
        "widths": ints(5, 5),
        "mask_count": ints(1, 0, kind="<i8"),
        "masks_offset": ints(0, 1, kind="<i8"),
        "masks_rles_idx": ints(0),
        "masks_rles": (
            1,
            np.array([4, 5, 2], "<u8").tobytes() + np.array([12, 8], "<u4").tobytes(),
        ),
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
    yield "counts", (2, np.array([4, -1], "<i4").tobytes()), "does not match"
    yield "offsets", (2, np.array([0, 1], "<i4").tobytes()), "does not match"
    for polygon in ([2, 0, 3], [-1, 0, 3], [0, 0, 4], [0, 2, 1], [0, -1, 2]):
        values = np.array([polygon, [0, 0, 3]], "<i4").tobytes()
        yield "polygon_data", (2, values), "has objects or vertices outside of the sample"
    yield "masks_rles", None, "has 0 entries in 4 bytes, but should have 1"
    yield "masks_rles", (1, bytes(20)), "has 24 bytes, but should have more"
    for size in ([5, 4], [4, 6]):
        content = np.array([*size, 1], "<u8").tobytes() + np.array([20], "<u4").tobytes()
        yield (
            "masks_rles",
            (1, content),
            rf"RLE of object 0 of 'a b.jpg' .* size \[{size[0]}, {size[1]}\], .*\[4, 5\]",
        )
    content = np.array([4, 5, 1], "<u8").tobytes() + np.array([19], "<u4").tobytes()
    yield "masks_rles", (1, content), "has 19 pixels"
    yield "masks_rles_idx", (1, np.array([2], "<i4").tobytes()), "objects outside of the sample"
    for far in (4e8, -2e6, np.inf, np.nan):
        values = np.array([1, 1, 3, far, 3, 3] * 2, "<f4").tobytes()
        words = r"a polygon of 'a b.jpg' has the vertex \[3.0, .*\], farther away than 1,000,000"
        yield "vertices", (6, values), words
    yield "widths", (2, np.array([0, 5], "<i4").tobytes()), "has a size below 1"
    wide = (2, np.array([5, 2**29], "<i4").tobytes())
    yield (
        "widths",
        wide,
        r"'c.jpg' has the size \[4, 536870912\], and masks have at most 1,073,741,8",
    )
    yield "labels", (3, np.array([1, -2, 1], "<i4").tobytes()), "a label is below 0"


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
    vertices = (6, np.array([1, 1, 3, 2.5e5, 3, 3] * 2, "<f4").tobytes())
    folder = write(tmp_path / "d", vertices=vertices)
    read(folder, pixelwise_masks=True)
    with pytest.raises(ValueError, match=r"'a b.jpg' has the vertex \[3.0, 250000.0\], farther"):
        read(folder, pixelwise_masks=True, ratio=True)


def test_an_outline_has_a_longest_length(tmp_path):
    far = [[9e5, 0], [-9e5, 0]] * 6
    content = {
        "vertices_count": (2, np.array([3, 12], "<i8").tobytes()),
        "vertices": (15, np.array([[1, 1], [3, 1], [3, 3], *far], "<f4").tobytes()),
    }
    for last in (6, 12):
        polygons = np.array([[1, 0, 3], [0, 0, last]], "<i4").tobytes()
        folder = write(tmp_path / str(last), **content, polygon_data=(2, polygons))
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
