"""JSON of any size and formatting: read in parts, strictly, with little in memory at once.

A map of a million files is 120 MB of text. Parsed as a whole, it would be ten million objects for a
while. Here the text passes through a window, and a long array comes in groups of its elements.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from json import JSONDecodeError, JSONDecoder
from reprlib import Repr
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")

_SPACE = re.compile(r"[ \t\n\r]*")
_DELIMITER = re.compile(r"[ \t\n\r]*([,:\]}])[ \t\n\r]*")
_WINDOW_BYTES = 1 << 18
_LONGEST_VALUE = 1 << 28  # characters: a file of millions of extents; more is an attack
# So few that their objects stay in the processor's cache.
_GROUP_VALUES = 128
_GROUP_CHARACTERS = 1 << 14

_short = Repr()
_short.maxstring = _short.maxother = 300


class MapFormatError(ValueError):
    """A bmap.json that cannot be believed; the message names the file and what is wrong."""


class ByteStream(Protocol):
    """What bytes are read from: an unbuffered binary file."""

    def read(self, size: int, /) -> bytes | None:
        """At most `size` bytes; none at the end."""


def shown(value: object) -> str:
    """A value in a message: its repr, cut short."""
    return _short.repr(value)


class Document:
    """A JSON object in a file: its members in their order, each parsed when it is asked for.

    It is stricter than `json.load`: an object, at whatever depth, has each of its members once, and
    NaN and Infinity are not numbers. All methods raise OSError, and MapFormatError with the line
    for what is not JSON in UTF-8, is nested deeper than Python's recursion limit, or has an integer
    of more digits than Python converts.

    Args:
        file: read to its end, not closed.
        window: bytes to read at once. Of the text little more is in memory than this, and the value
            that is being parsed. Where that is not JSON up to 256 MiB are read to be sure.
    """

    def __init__(self, file: ByteStream, *, window: int = _WINDOW_BYTES) -> None:
        self._file = file
        self._window = window
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._json = JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
        self._text = ""
        self._at = 0  # where in the text to go on
        self._line = 1  # in which the text ends

    def members(self) -> Iterator[str]:
        """The names of the members; before the next one, value() or elements() must be used up."""
        names: set[str] = set()
        more = self._opens("{", "}")
        while more:
            if self._peek() != '"':
                raise self._error("expected the name of a member")
            name = self._take(self._value)
            if name in names:
                raise self._error(f"the member {shown(name)} is there twice")
            names.add(name)
            if self._peek() != ":":
                raise self._error("expected a colon")
            self._at += 1
            yield name
            more = self._continues("}")
        self._expect_end()

    def value(self) -> Any:
        """The value of the member, as `json.load` makes it."""
        self._peek()
        return self._take(self._value)

    def elements(self) -> Iterator[list[Any]]:
        """The elements of the array that the member is, in groups of at least one."""
        more = self._opens("[", "]")
        while more:
            self._peek()
            yield self._take(self._group)
            more = self._continues("]")

    def _value(self, text: str, at: int) -> tuple[Any, int]:
        value, end = self._json.raw_decode(text, at)
        if not _DELIMITER.match(text, end):  # a number may go on beyond the window
            raise JSONDecodeError("expected a delimiter", text, end)
        return value, end

    def _group(self, text: str, at: int) -> tuple[list[Any], int]:
        """At least one value, and the position after the last."""
        # Arrays, one a line, as save() writes them: many for the price of one call. What is JSON by
        # itself is the same in the whole text; what is not, the other way finds out why.
        end = text.rfind("],\n[", at, at + _GROUP_CHARACTERS) + 1
        if end:
            with suppress(ValueError, RecursionError):
                return self._json.decode(f"[{text[at:end]}]"), end
        return self._group_of_any_layout(text, at)

    def _group_of_any_layout(self, text: str, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        end = at
        try:
            while True:
                value, end_of_value = self._value(text, at)
                values.append(value)
                end = end_of_value
                delimiter = _DELIMITER.match(text, end)
                if not delimiter or delimiter[1] != "," or len(values) == _GROUP_VALUES:
                    return values, end
                at = delimiter.end()
        except (ValueError, RecursionError):
            if not values:
                raise
            return values, end  # the next group begins with the culprit

    def _take(self, parse: Callable[[str, int], tuple[T, int]]) -> T:
        """What is parsed from here, with more of the text if that is too little; go on after it."""
        while True:
            try:
                taken, self._at = parse(self._text, self._at)
                return taken
            except JSONDecodeError as error:
                where = error.pos - self._at
                if len(self._text) - self._at > _LONGEST_VALUE or not self._read_more():
                    what = f"not JSON, or cut off: {error.msg}"
                    raise self._error(what, self._at + where) from None
            except (ValueError, RecursionError) as error:
                raise self._error(str(error)) from None

    def _peek(self) -> str:
        """The next character that is not white space; it is where to go on."""
        while True:
            if space := _SPACE.match(self._text, self._at):
                self._at = space.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_more():
                raise self._error("the text is empty, or cut off")

    def _opens(self, opening: str, closing: str) -> bool:
        """Go into an array or object; whether there is anything in it."""
        if self._peek() != opening:
            raise self._error(f"expected {opening!r}")
        self._at += 1
        if self._peek() != closing:
            return True
        self._at += 1
        return False

    def _continues(self, closing: str) -> bool:
        """Go over the delimiter after a value; whether there is one more value."""
        delimiter = self._peek()
        if delimiter not in (",", closing):
            raise self._error(f"expected ',' or {closing!r}")
        self._at += 1
        return delimiter == ","

    def _expect_end(self) -> None:
        while self._text[self._at :].strip(" \t\n\r") == "":
            self._at = len(self._text)
            if not self._read_more():
                return
        raise self._error("there is more after the end of the object")

    def _read_more(self) -> bool:
        """Forget the text before here and read on; False at the end of the file."""
        self._text, self._at = self._text[self._at :], 0
        # As much as there is: a value of n characters is parsed log(n) times at most.
        size = max(self._window, len(self._text))
        try:
            while data := self._file.read(size):
                text = self._decode(data)
                # Many times as fast as bytes.count(), which is made for longer needles.
                self._line += int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord("\n")))
                if text:
                    self._text += text
                    return True
            self._decode(b"", True)
        except UnicodeDecodeError as error:
            self._line += error.object[: error.start].count(b"\n")
            raise self._error(f"not UTF-8: {error.reason}", len(self._text)) from None
        return False

    def _error(self, what: str, at: int | None = None) -> MapFormatError:
        line = self._line - self._text.count("\n", self._at if at is None else at)
        return MapFormatError(f"line {line}: {what}")


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) == len(members):
        return found
    names: set[str] = set()
    for name, _ in members:
        if name in names:
            break
        names.add(name)
    raise MapFormatError(f"the member {shown(name)} is there twice")


def _no_number(constant: str) -> float:
    raise MapFormatError(f"{constant} is not a number")
