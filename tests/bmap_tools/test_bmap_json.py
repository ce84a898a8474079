"""JSON that is no map, each kind with its message; test_fuzz.py compares with Python's json."""

import io

import pytest

from bmap_tools import MapFormatError, bmap_json
from bmap_tools.bmap_json import OtherLayout, read_document, read_lines


def whole(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return read_document(io.BytesIO(data))


BROKEN = r"line 1: not JSON, or cut off: ."
ROWS = '{\n"files": [\n' + '["x"],\n' * 1000
REFUSED = [
    *((text, BROKEN) for text in ("", '\ufeff{"a": 1}', '{"a": 1', '{"a": [1 2]}', "{}{}")),
    (ROWS + "[1, nul]\n]\n}", "line 1003: .*Expecting value"),
    *((data, "line 1: not UTF-8") for data in (b'{"a": "\xff"}', b'{"\xc3', b'{"a": 1}\xe2\x82')),
    ('{"a": 1}'.encode("utf-16"), "line 1: not UTF-8"),
    (ROWS.encode() + b'["\xff"]\n]\n}', "line 1003: not UTF-8"),
    ('{"a": NaN}', "NaN is not a number"),
    ('{"a": [Infinity]}', "Infinity is not a number"),
    ('{"a": [\n[-Infinity],\n[1]]}', "-Infinity is not a number"),
    ('{"a": 1, "b": 2, "a": 1}', "'a' occurs twice"),
    ('{"a": 1, "\\u0061": 1}', "'a' occurs twice"),
    ('{"a": [{"b": 1, "c": 3, "b": 2}]}', "'b' occurs twice"),
    (f'{{"a": {"1" * 5000}}}', "too many digits"),
    ("[1]", r"must be a JSON object, not \[1\]"),
    ("1", "must be a JSON object, not 1"),
    *(('{"a": ' + 10**6 * it, "nested too deeply") for it in ("[", '{"a":', "[[],[", '[{"":')),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=lambda it: ascii(it[:20]))
def test_text_that_is_no_map_is_refused(text, message):
    with pytest.raises(MapFormatError, match=message):
        whole(text)


def test_rows_of_several_lines_are_left_to_the_other_parser(monkeypatch):
    monkeypatch.setattr(bmap_json, "GROUP_BYTES", 1)
    text = '{\n"files": [' + ",".join(["\n[[1],\n[2]]"] * 100) + "\n]\n}\n"
    with pytest.raises(OtherLayout):
        list(read_lines(io.BytesIO(text.encode()))[1])


class Endless(io.RawIOBase):
    """One line without an end."""

    def __init__(self, beginning: bytes) -> None:
        self.beginning = beginning
        self.delivered = 0

    def read(self, size=-1, /):
        data = self.beginning[:size]
        self.beginning = self.beginning[size:]
        data += b"x" * (size - len(data))
        self.delivered += size
        return data


@pytest.mark.parametrize("beginning", [b'{"a": "', b'{\n"files": [\n["x"],\n["'])
def test_text_without_end_is_not_read_to_its_end(monkeypatch, beginning):
    monkeypatch.setattr(bmap_json, "MAX_BYTES", 1 << 20)
    file = Endless(beginning)
    with pytest.raises(OtherLayout):
        list(read_lines(file)[1])
    assert file.delivered <= 4 << 20
    file = Endless(beginning)
    with pytest.raises(MapFormatError, match="larger than 1 MiB, and damaged or not written with"):
        read_document(file)
    assert file.delivered <= (1 << 20) + 1
