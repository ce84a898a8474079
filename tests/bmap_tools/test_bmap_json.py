"""JSON that is no map, each kind with its message; test_fuzz.py compares with Python's json."""

import io

import pytest

from bmap_tools import MapFormatError, bmap_json
from bmap_tools.bmap_json import OtherLayout, read_document, read_lines


def whole(text):
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return read_document(io.BytesIO(data))


BROKEN = ["", '\ufeff{"a": 1}', '{"a": 1', '{"a": [1 2]}', "{}{}"]
FORBIDDEN = {
    '{"a": NaN}': "NaN is not a number",
    '{"a": [Infinity]}': "Infinity is not a number",
    '{"a": [\n[-Infinity],\n[1]]}': "-Infinity is not a number",
    '{"a": 1, "b": 2, "a": 1}': "'a' occurs twice",
    '{"a": 1, "\\u0061": 1}': "'a' occurs twice",
    '{"a": [{"b": 1, "c": 3, "b": 2}]}': "'b' occurs twice",
    f'{{"a": {"1" * 5000}}}': "too many digits",
    "[1]": r"must be a JSON object, not \[1\]",
    "1": "must be a JSON object, not 1",
}


@pytest.mark.parametrize("text", BROKEN, ids=ascii)
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(MapFormatError, match=r"line \d+: not JSON, or cut off: ."):
        whole(text)


@pytest.mark.parametrize(("text", "message"), FORBIDDEN.items())
def test_json_that_a_map_may_not_contain_is_refused(text, message):
    with pytest.raises(MapFormatError, match=message):
        whole(text)


@pytest.mark.parametrize(
    "data", [b'{"a": "\xff"}', b'{"\xc3', b'{"a": 1}\xe2\x82', '{"a": 1}'.encode("utf-16")]
)
def test_bytes_that_are_not_utf8_are_refused(data):
    with pytest.raises(MapFormatError, match="line 1: not UTF-8"):
        whole(data)


def test_the_message_of_broken_json_names_the_line():
    rows = '{\n"files": [\n' + '["x"],\n' * 1000
    with pytest.raises(MapFormatError, match=r"line 1003: .*Expecting value"):
        whole(rows + "[1, nul]\n]\n}")
    with pytest.raises(MapFormatError, match="line 1003: not UTF-8"):
        whole(rows.encode() + b'["\xff"]\n]\n}')


def test_rows_of_several_lines_are_left_to_the_other_parser(monkeypatch):
    monkeypatch.setattr(bmap_json, "GROUP_BYTES", 1)
    text = '{\n"files": [' + ",".join(["\n[[1],\n[2]]"] * 100) + "\n]\n}\n"
    with pytest.raises(OtherLayout):
        list(read_lines(io.BytesIO(text.encode()))[1])


@pytest.mark.parametrize("opening", ["[", '{"a":', "[[],[", '[{"":'])
def test_nesting_without_end_is_refused(opening):
    text = '{"a": ' + opening * (10_000_000 // len(opening))
    with pytest.raises(MapFormatError, match="nested too deeply"):
        whole(text)


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
