"""Reading JSON in parts, against Python's own json."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bmap_tools.bmap_json import Document, MapFormatError

NAMES = st.text(max_size=3)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=20,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)
ROWS = st.fixed_dictionaries({"rows": st.lists(st.lists(VALUES, max_size=3), max_size=9)})
LAYOUTS = st.fixed_dictionaries(
    {},
    optional={
        "indent": st.sampled_from([0, 1, "\t", "\r\n "]),
        "separators": st.sampled_from([(",", ":"), (" , ", " : "), ("\n,", "\r:\t")]),
        "ensure_ascii": st.booleans(),
    },
)
WINDOWS = st.integers(1, 40)


def read(text: str | bytes, window: int = 1 << 18) -> dict[str, Any]:
    """All members; arrays by their elements."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    document = Document(io.BytesIO(data), window=window)
    return {name: value(document) for name in document.members()}


def value(document: Document) -> Any:
    if document._peek() != "[":
        return document.value()
    groups = list(document.elements())
    assert all(groups)
    return [element for group in groups for element in group]


def lines(rows: list[Any]) -> str:
    return '{\n"rows": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]\n}"


@given(OBJECTS | ROWS, LAYOUTS, WINDOWS)
@example({"a": [1.5e300, -1.5e-7], "b": 123456, "c": True, "": {}}, {}, 1)
@example({"\ud83d\ude00\udcff": ["日本\U0001f600"] * 3}, {"ensure_ascii": True}, 1)
def test_any_layout_in_any_window_is_what_json_reads(
    members: dict[str, Any], layout: dict[str, Any], window: int
) -> None:
    text = json.dumps(members, **layout)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is no UTF-8; escaped it is
        text = json.dumps(members, **(layout | {"ensure_ascii": True}))
    assert read(text, window) == json.loads(text)


@given(ROWS, WINDOWS)
def test_an_array_a_line_is_what_json_reads(members: dict[str, Any], window: int) -> None:
    text = lines(members["rows"])
    assert read(text, window) == json.loads(text)


def test_a_million_lines_are_never_in_memory_at_once() -> None:
    text = lines([[f"{row:090}", row] for row in range(50_000)]).encode()
    tracemalloc.start()
    document = Document(io.BytesIO(text))
    for _ in document.members():
        count = sum(len(rows) for rows in document.elements())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 50_000
    assert peak < len(text) / 3


BROKEN = {
    "empty": "",
    "white space": " \n\t",
    "array": "[1]",
    "number": "1",
    "byte order mark": '\ufeff{"a": 1}',
    "not closed": '{"a": 1',
    "array not closed": '{"a": [1',
    "array closed by a brace": '{"a": [1}',
    "array closed by a brace, in a line": '{"a": [\n[1],\n[2]\n}',
    "object closed by a bracket": '{"a": 1]',
    "comma at the end": '{"a": 1,}',
    "comma at the end of an array": '{"a": [1,]}',
    "comma at the beginning": '{"a": [,1]}',
    "no comma": '{"a": 1 "b": 2}',
    "no comma in an array": '{"a": [1 2]}',
    "no colon": '{"a" 1}',
    "no value": '{"a": }',
    "no name": "{1: 1}",
    "single quotes": "{'a': 1}",
    "comment": '{"a": 1 /* one */}',
    "line feed in a string": '{"a": "\n"}',
    "line feed in the string of a row": '{"a": [["x],\n[y"],\n[1]]}',
    "string not closed": '{"a": "b',
    "bad escape": '{"a": "\\x"}',
    "number cut off": '{"a": 1.',
    "leading zero": '{"a": 01}',
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": [Infinity]}',
    "-Infinity": '{"a": [\n[-Infinity],\n[1]]}',
    "twice": '{"a": 1, "b": 2, "a": 1}',
    "twice, written differently": '{"a": 1, "\\u0061": 1}',
    "twice in a value": '{"a": [{"b": 1, "c": 3, "b": 2}]}',
    "two objects": "{}{}",
    "text at the end": "{} x",
    "NUL at the end": "{}\0",
    "other white space": '{"a":\u00a01}',
}


@pytest.mark.parametrize("window", [1, 7, 1 << 18])
@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_json_is_refused(text: str, window: int) -> None:
    with pytest.raises(MapFormatError, match=r"line \d+: ."):
        read(text, window)


@pytest.mark.parametrize("window", [1, 7, 1 << 18])
@pytest.mark.parametrize(
    "data", [b'{"a": "\xff"}', b'{"\xc3', b'{"a": 1}\xe2\x82', '{"a": 1}'.encode("utf-16")]
)
def test_what_is_not_utf8_is_refused(data: bytes, window: int) -> None:
    with pytest.raises(MapFormatError, match="not UTF-8"):
        read(data, window)


@pytest.mark.parametrize("window", [1, 64, 1 << 18])
@pytest.mark.parametrize(
    ("bad", "what"),
    [
        ("[1, nul]", "Expecting value"),
        ("[NaN]", "NaN is not a number"),
        ('{"a": 1, "a": 1}', "'a' is there twice"),
        ("[1] [2]", "expected a delimiter"),
        ("1" * 5000, "4300 digits"),
        ("[" * 200_000, "recursion"),
    ],
)
def test_the_message_names_the_line(bad: str, what: str, window: int) -> None:
    text = '{\n"rows": [\n' + '["x"],\n' * 1000 + bad + ',\n["x"],\n["x"]\n]\n}'
    with pytest.raises(MapFormatError, match=rf"line 1003: .*{what}"):
        read(text, window)


def test_the_message_names_the_line_of_a_byte_that_is_not_utf8() -> None:
    with pytest.raises(MapFormatError, match="line 1003: not UTF-8"):
        read(b'{\n"rows": [\n' + b'["x"],\n' * 1000 + b'["\xff"]\n]\n}')


@pytest.mark.parametrize("opening", ["[", '{"a":', "[[],[", '[{"":'])
def test_nesting_without_end_is_refused(opening: str) -> None:
    text = '{"a": ' + opening * (10_000_000 // len(opening))
    with pytest.raises(MapFormatError, match=r"line 1: .*recursion"):
        read(text)


def test_a_value_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmap_tools.bmap_json._LONGEST_VALUE", 1000)
    file = io.BytesIO(b'{"a": "' + b"x" * 100_000)
    document = Document(file, window=64)
    with pytest.raises(MapFormatError, match="cut off: Unterminated string"):
        for _ in document.members():
            document.value()
    assert file.tell() < 5000


def test_a_long_object_with_a_member_twice_is_refused_soon() -> None:
    names = ", ".join(f'"{name}": 1' for name in [*range(200_000), 199_999])
    with pytest.raises(MapFormatError, match="'199999' is there twice"):
        read(f'{{"a": {{{names}}}}}')
