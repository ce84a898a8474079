"""JSON text an entry at a time: its long lists are never in memory as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

_TOKEN = re.compile(r"[ \t\n\r]*([{}\[\],:])[ \t\n\r]*").match
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]").search
# Escapes as units; the group is a half of a surrogate pair without the other one.
_ESCAPES = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)").finditer
_LARGE_EXPONENT = re.compile(r"[eE]\+?0*[1-9]\d\d").search
_DAMAGED = "the file is not whole, or no JSON: write or copy it anew"


class Entry(NamedTuple):
    """An entry of a list."""

    kind: str  # the name of the list
    number: int
    start: int  # where it is in the text
    end: int
    value: Any  # its texts have a character for each byte


class Scanner:
    """The text of a JSON file, with a character for each byte.

    What RapidJSON refuses is refused: numbers beyond float64, and halves of surrogate pairs. DALI,
    which parses by it, would lose the rest of the file without a word. Also refused are fields of
    which DALI takes another value than Python: those that are there twice, and names with NUL.
    """

    def __init__(self, about: str, text: str) -> None:
        """`about` begins the messages."""
        self._text, self._about, self._at = text, about, 0
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_fields,
            parse_float=_real,
            parse_int=_integer,
            parse_constant=_no_number,
        )

    def entries(self, kinds: Iterable[str]) -> Iterator[Entry]:
        """The entries of the lists of these names.

        Raises:
            ValueError: the text is no JSON object, or one of these is no list; names the place.
        """
        if self._text.startswith("\xef\xbb\xbf"):
            self.fail("it begins with a byte order mark (BOM)", "write it as UTF-8 without")
        # The first search is fast, and usually finds nothing.
        if _SURROGATE(self._text):
            for half in filter(itemgetter(1), _ESCAPES(self._text)):
                what = f"at byte {half.start():,} there is one half of a surrogate pair"
                self.fail(what, "write both, or the character itself")
        seen = set[str]()
        for _ in self._items("{", "}", "the outermost object"):
            key = self._decode("the outermost object")
            if not isinstance(key, str):
                self._expected("a name in quotes", "in the outermost object")
            self._take(":", f"behind {key!r}")
            if key in seen or "\0" in key:
                self.fail(f"the outermost object has {key!r} twice, or with NUL")
            seen.add(key)
            if key not in kinds:
                self._decode(key)
                continue
            for number, _ in enumerate(self._items("[", "]", key)):
                start, value = self._at, self._decode(f"{key}[{number}]")
                yield Entry(key, number, start, self._at, value)
        if self._at < len(self._text):
            self._expected("the end", "behind the outermost object")

    def real(self, entry: Entry) -> Any:
        """The value of an entry, with its texts from UTF-8; other bytes are surrogates."""
        text = self._text[entry.start : entry.end]
        real = text.encode("latin-1").decode("utf-8", "surrogateescape")
        return entry.value if text.isascii() else json.loads(real)

    def refuse(self, entry: Entry, what: str, remedy: str = "correct the file") -> NoReturn:
        """Raise ValueError for an entry; `what` names the field and the value."""
        value = entry.value
        known = f" (id {value['id']!r})" if isinstance(value, dict) and "id" in value else ""
        self.fail(f"{entry.kind}[{entry.number}]{known}: {what}", remedy)

    def fail(self, what: str, remedy: str = "correct the file") -> NoReturn:
        """Raise ValueError."""
        raise ValueError(f"{self._about}: {what}; {remedy}")

    def _items(self, opening: str, closing: str, where: str) -> Iterator[None]:
        """Goes to the beginning of each item in turn, and at last behind the closing bracket."""
        self._take(opening, f"to begin {where}")
        found = _TOKEN(self._text, self._at)
        while not found or found[1] != closing:
            yield
            found = _TOKEN(self._text, self._at)
            if not found or found[1] not in (",", closing):
                self._expected(f"',' or {closing!r}", f"in {where}")
            if found[1] == ",":
                self._at = found.end()
        self._at = found.end()

    def _take(self, token: str, where: str) -> None:
        found = _TOKEN(self._text, self._at)
        if not found or found[1] != token:
            self._expected(repr(token), where)
        self._at = found.end()

    def _decode(self, where: str) -> Any:
        """The value that begins here; goes to its end."""
        try:
            value, self._at = self._decoder.raw_decode(self._text, self._at)
            return value
        except _Unfit as error:
            what, token, remedy = error.args
            at = max(self._text.find(token, self._at), self._at)
            before = self._text[max(self._at, at - 20) : at]
            self.fail(f"{where}: {what} (byte {at:,}, behind {before!r})", remedy)
        except json.JSONDecodeError as error:
            self.fail(f"{where}: {error.msg} (byte {error.pos:,})", _DAMAGED)
        except RecursionError as error:  # too many lists in lists
            self.fail(f"{where}: {error}")

    def _expected(self, what: str, where: str) -> NoReturn:
        text = self._text[self._at : self._at + 20]
        found = repr(text) if text else "the end of the file"
        self.fail(f"{what} expected {where}, not {found} (byte {self._at:,})", _DAMAGED)


class _Unfit(Exception):  # noqa: N818  (never reaches a user)
    """JSON that DALI loses or misunderstands: what, its text, and the remedy."""


def _no_number(text: str) -> NoReturn:
    what = f"{text:.30} must not be in it: JSON has no such number"
    raise _Unfit(what, text, "DALI loses what follows: leave the field out, or write 0")


def _real(text: str) -> float:
    value = float(text)
    is_refused = value - value or (not value and _LARGE_EXPONENT(text))  # such as inf and 0e400
    return _no_number(text) if is_refused else value


def _integer(text: str) -> int:
    return int(text) if len(text) <= 300 else _no_number(text)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; refuses fields that DALI does not take as Python does."""
    found = dict(pairs)
    if len(found) < len(pairs) or "\0" in "".join(found):
        names = [name for name, _ in pairs]
        name = next(it for it in names if "\0" in it or names.count(it) > 1)
        what = f"the field {name!r} is there twice, or has NUL in its name"
        raise _Unfit(what, name.partition("\0")[0], "correct the file")
    return found
