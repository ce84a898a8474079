"""The pickles of CIFAR, read without unpickling: nothing that a file names is imported or called.

A pickle is a program for a machine with a stack. `pickle.load()` runs it, and it may call any
function. Here is no such machine. The published files are dicts of text, integers, lists of these
and one array, and cPickle of Python 2 wrote each of them in one way (protocol 2). `parse()` knows
this way and refuses everything else. The opcodes are described in Python's Lib/pickletools.py.
"""

import re
from dataclasses import dataclass
from typing import Any, TypeAlias

RECORD_BYTES = 3 * 32 * 32
"""Of an image: 32 x 32 pixels; the red, the green and the blue plane, row by row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """An array of images, uint8[count, RECORD_BYTES], left where it is in the pickle.

    Attributes:
        start: where its bytes start.
        count: how many rows it has.
        transposed: whether the first index varies fastest in memory (Fortran's order).
    """

    start: int
    count: int
    transposed: bool


Value: TypeAlias = int | str | list[Any] | Rows


def parse(pickled: memoryview) -> dict[str, Value]:
    """The dict in a whole pickle. Text is decoded as Latin-1.

    Raises:
        ValueError: there is anything else than in the published files. None of it was executed.
    """
    parser = _Parser(pickled)
    try:
        return parser.dict()
    except IndexError:
        raise parser.refusal("the end is missing") from None
    except RecursionError:
        raise parser.refusal("lists are nested") from None


def _form(pattern: bytes) -> re.Pattern[bytes]:
    """In a pattern, a space is the opcode that numbers a value, or nothing."""
    return re.compile(pattern.replace(b" ", b"(?:q.|r.{4})?"), re.DOTALL)


_DICT, _DICT_END = _form(rb"\x80\x02} \("), _form(rb"u\.")
_LIST, _PART, _PART_END = _form(rb"\] "), _form(rb"\("), _form(rb"e")
_TEXT, _NUMBER = b"U"[0], _form(rb" ")
# Lists are written in parts of 1,000. The memory of a match grows with its length.
_SMALL_INTEGERS, _INTEGER = _form(rb"(?:K.){1,1000}"), _form(rb"M(..)")
_ROWS, _ROWS_END = (
    _form(
        rb"cnumpy\.core\.multiarray\n_reconstruct\n cnumpy\nndarray\n K\0\x85 U\x01b \x87 R "
        rb"\(K\x01(?:K(.)|M(..))M\0\x0c\x86 "  # the shape: by 3,072
        rb"cnumpy\ndtype\n U\x02u1 K\0K\x01\x87 R \(K\x03U\x01\| NNN(?:J\xff{4}){2}K\0t b"
        rb"([\x88\x89])T(.{4})"
    ),
    _form(rb" t b"),
)


class _Parser:
    """Goes through one pickle."""

    def __init__(self, pickled: memoryview) -> None:
        self._pickled = pickled
        self._place = 0

    def refusal(self, why: str) -> ValueError:
        return ValueError(
            f"byte {self._place}: {why}; the file is truncated, damaged, or was pickled anew, by "
            "Python 3 perhaps: extract the original archive again"
        )

    def dict(self) -> dict[str, Value]:
        self._expect(_DICT)
        items = self._values()
        self._expect(_DICT_END)
        if set(map(type, items[::2])) - {str} or len(items) % 2:
            raise self.refusal("a dict has other keys than text, or no value for one")
        if left := len(self._pickled) - self._place:
            raise self.refusal(f"the pickle ends here, and {left} bytes are left")
        return dict(zip(items[::2], items[1::2], strict=True))

    def _values(self) -> list[Any]:
        """Those that follow one after another."""
        values = list[Any]()
        while True:
            if self._pickled[self._place] == _TEXT:
                values += self._texts()
            elif found := self._take(_SMALL_INTEGERS):
                values += found[0][1::2]
            elif found := self._take(_INTEGER):
                values.append(_integer(found[1]))
            elif self._take(_LIST):
                values.append(self._list())
            elif found := self._take(_ROWS):
                values.append(self._rows(found))
            else:
                return values

    def _list(self) -> list[Any]:
        values = list[Any]()
        while self._take(_PART):
            values += self._values()
            self._expect(_PART_END)
        return values

    def _texts(self) -> list[str]:
        # A file has 10,000 names of files: one look at each is affordable.
        pickled, place, texts = self._pickled, self._place, list[str]()
        while pickled[place] == _TEXT:
            end = place + 2 + pickled[place + 1]
            texts.append(str(pickled[place + 2 : end], "latin-1"))
            place = _NUMBER.match(pickled, end).end()  # type: ignore[union-attr]  # it may be empty
        self._place = place
        return texts

    def _rows(self, found: re.Match[bytes]) -> Rows:
        count, nbytes = _integer(found[1] or found[2]), _integer(found[4])
        rows = Rows(self._place, count, found[3] == b"\x88")
        if nbytes != count * RECORD_BYTES:
            raise self.refusal(f"{count} images have {nbytes} bytes")
        missing = self._place + nbytes - len(self._pickled)
        if missing > 0:
            raise self.refusal(f"{missing} bytes of images are missing")
        self._place += nbytes
        self._expect(_ROWS_END)
        return rows

    def _take(self, form: re.Pattern[bytes]) -> re.Match[bytes] | None:
        """What is next, if it has this form."""
        found = form.match(self._pickled, self._place)
        if found:
            self._place = found.end()
        return found

    def _expect(self, form: re.Pattern[bytes]) -> None:
        if not self._take(form):
            here = bytes(self._pickled[self._place :][:30])
            raise self.refusal(f"{here!r} is not in the published files")


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "little")
