"""Annotations that DALI misreads, crashes at, or never returns from: all are refused."""

import copy
import json
import re

import numpy as np
import pytest

from dali_storage.formats.coco import dump
from dali_storage.formats.coco.options import CocoOptions
from dali_storage.formats.coco.parse import Found

GONE = object()
POLYGONS, PIXELS = {"polygon_masks": True}, {"pixelwise_masks": True}
SIZE, FLAGS = {"width": 10, "height": 20}, {"category_id": 5, "iscrowd": 0, "area": 3.5}
DATA = {
    "info": {"year": 2017},
    "images": [{"id": 10 + it, "file_name": f"{it}.jpg", **SIZE} for it in range(4)],
    "annotations": [
        {"id": 50 + it, "image_id": 10 + it, **FLAGS, "bbox": [it, 2, 3, 4.5]}
        | {"segmentation": [[it, 2, 3, 4, 5, 6]]}
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
    """The names and annotations."""
    content = content.encode() if isinstance(content, str) else content
    given = CocoOptions(**options)
    files = Found("a.json", content.decode("latin-1"), given).files()
    return dump.read("a.json", files, given)


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
    no_masks = [{}, {"size": [3, 3]}, {"size": [3, 3], "counts": None}]
    no_masks += [{"size": "a", "counts": [9]}, {"size": [3, 3], "counts": [1.0, 8]}]
    no_masks += [{"size": [3, 3], "counts": [-1, 10]}, {"size": [3, 3], "counts": ""}]
    no_masks += [{"size": [3, 0], "counts": [0]}, {"size": [3, -3], "counts": [9]}]
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
    data["annotations"][3] |= {"bbox": [1e39, 3e38, 3, 3e38], "segmentation": None}
    data["images"][1] |= {"text": "\\ud800 \U0001f600", "file_name": "é\U0001f600.jpg"}
    data["images"][1].pop("width")
    for text in (json.dumps(data), json.dumps(data, ensure_ascii=False)):
        names, found = checked(text.replace("2017", "0e308"), polygon_masks=True, ltrb=True)
        assert found.objects.columns[0][2].tolist() == [np.inf, np.float32(3e38), np.inf, np.inf]
        assert names == [b"0.jpg", "é\U0001f600.jpg".encode(), b"2.jpg", b"3.jpg"]
        assert np.diff(found.objects.starts).tolist() == [1, 0, 1, 1]
        assert np.diff(found.polygons.starts).tolist() == [1, 0, 0, 0]
    data["annotations"][3]["segmentation"] = []
    data["annotations"][2]["segmentation"]["counts"] = [200]
    data["images"][1]["width"] = 5
    checked(json.dumps(data), pixelwise_masks=True, images=(b"0.jpg",))
    names = json.dumps(DATA).encode().replace(b"0.jpg", b"\xff.jpg")  # as file systems have them
    assert checked(names)[0][0] == b"\xff.jpg"
