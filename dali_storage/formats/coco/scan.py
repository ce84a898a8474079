"""Scans JSON text an entry at a time: long lists are never in memory as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn

from .. import numbers

_TOKEN = re.compile(r"[ \t\n\r]*([{}\[\],:])[ \t\n\r]*").match
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]").search
# Escapes as units; the group is half of a surrogate pair without the other half.
_ESCAPES = re.compile(r"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]|(u[dD][89a-fA-F])|.)").finditer
_DAMAGED = "the file is truncated or not JSON of COCO: write or copy it again"


class Entry(NamedTuple):
    """An entry of a list."""

    kind: str  # the name of the list
    number: int
    start: int  # in the text
    end: int
    value: Any  # its texts have a character for each byte


class Scanner:
    """The text of a JSON file, with a character for each byte.

    Numbers are those of RapidJSON, DALI's parser. Numbers beyond float64 and halves of surrogate
    pairs are refused, as by RapidJSON: DALI would silently lose the rest of the file. Also refused
    are fields with another value in DALI than in Python: repeated fields, and names with NUL.
    """

    def __init__(self, about: str, text: str) -> None:
        """`about`: the start of messages; raise BackendUnavailable if `numbers.parser()` does."""
        self.about, self._text, self._at = about, text, 0
        number = numbers.parser()
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_fields,
            parse_float=number,
            parse_int=number,
            parse_constant=_no_number,
        )

    def entries(self, kinds: Iterable[str]) -> Iterator[Entry]:
        """Yield the entries of the lists of these names.

        Raises:
            ValueError: the text is not a JSON object, or a value is not a list; names the place.
        """
        if self._text.startswith("\xef\xbb\xbf"):
            self.fail("it begins with a byte order mark (BOM)", "write UTF-8 without a BOM")
        # The first search is fast, and usually finds nothing.
        if _SURROGATE(self._text):
            for half in filter(itemgetter(1), _ESCAPES(self._text)):
                what = f"at byte {half.start():,} there is one half of a surrogate pair"
                self.fail(what, "write both halves, or the character itself")
        seen = set[str]()
        for _ in self._items("{", "}", "the outermost object"):
            key = self._decode("the outermost object")
            if not isinstance(key, str):
                self._expected("a name in quotes", "in the outermost object")
            self._take(":", f"after {key!r}")
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
            self._expected("the end", "after the outermost object")
        self._text = ""  # may be large

    def real(self, entry: Entry) -> Any:
        """Return the value of an entry as it is written: texts from UTF-8, numbers of any size.

        Bytes that are not UTF-8 are surrogates.
        """
        text = self._text[entry.start : entry.end].encode("latin-1")
        return json.loads(text.decode("utf-8", "surrogateescape"))

    def refuse(self, entry: Entry, what: str, remedy: str = "correct the file") -> NoReturn:
        """Raise ValueError for an entry; `what` names the field and the value."""
        value = entry.value
        known = f" (id {value['id']!r})" if isinstance(value, dict) and "id" in value else ""
        self.fail(f"{entry.kind}[{entry.number}]{known}: {what}", remedy)

    def fail(self, what: str, remedy: str = "correct the file") -> NoReturn:
        """Raise ValueError."""
        raise ValueError(f"{self.about}: {what}; {remedy}")

    def _items(self, opening: str, closing: str, where: str) -> Iterator[None]:
        """Go to the start of each item in turn, and finally to the end of the closing bracket."""
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
        """Decode the value at the current position, and go to its end."""
        try:
            value, self._at = self._decoder.raw_decode(self._text, self._at)
            return value
        except _Unfit as error:
            self._refuse(where, *error.args)
        except OverflowError as error:
            what = f"{error.args[0]:.30} is not a number in JSON"
            remedy = "DALI would lose the rest: leave the field out, or write 0"
            self._refuse(where, what, error.args[0], remedy)
        except json.JSONDecodeError as error:
            self.fail(f"{where}: {error.msg} (byte {error.pos:,})", _DAMAGED)
        except RecursionError as error:  # too deep lists in lists
            self.fail(f"{where}: {error}")

    def _refuse(self, where: str, what: str, token: str, remedy: str) -> NoReturn:
        """Raise ValueError for a token behind the current position."""
        at = max(self._text.find(token, self._at), self._at)
        before = self._text[max(self._at, at - 20) : at]
        self.fail(f"{where}: {what} (byte {at:,}, after {before!r})", remedy)

    def _expected(self, what: str, where: str) -> NoReturn:
        text = self._text[self._at : self._at + 20]
        found = repr(text) if text else "the end of the file"
        self.fail(f"{what} expected {where}, not {found} (byte {self._at:,})", _DAMAGED)


class _Unfit(Exception):  # noqa: N818  (never reaches a user)
    """JSON lost or misread by DALI: a description, its text, and the remedy."""


def _no_number(text: str) -> NoReturn:
    raise OverflowError(text)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; refuse fields that DALI reads otherwise than Python."""
    found = dict(pairs)
    if len(found) < len(pairs) or "\0" in "".join(found):
        names = [name for name, _ in pairs]
        name = next(it for it in names if "\0" in it or names.count(it) > 1)
        what = f"the field {name!r} is repeated, or has NUL in its name"
        raise _Unfit(what, name.partition("\0")[0], "correct the file")
    return found
