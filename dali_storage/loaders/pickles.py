"""The pickles of CIFAR, read without unpickling: nothing that a file names is imported or called.

A pickle is a program for a machine with a stack. `pickle.load()` runs it, and it may call any
function. Here is no such machine. The published files are dicts of text, integers, lists of these
and one array, and cPickle of Python 2 wrote each of them in one way (protocol 2). `parse()` knows
this way and refuses everything else. The opcodes are described in Python's Lib/pickletools.py.
"""

import re
from dataclasses import dataclass
from typing import TypeAlias

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


Value: TypeAlias = int | str | bytes | list[str] | Rows


def parse(pickled: memoryview) -> dict[str, Value]:
    """The dict in a whole pickle. Text is decoded as Latin-1; integers in a list are its bytes.

    Raises:
        ValueError: there is anything else than in the published files. None of it was executed.
    """
    parser = _Parser(pickled)
    try:
        return parser.dict()
    except IndexError:
        raise parser.refusal("the end is missing") from None


def _form(pattern: bytes) -> re.Pattern[bytes]:
    """In a pattern, a space is the opcode that numbers a value, or nothing."""
    return re.compile(pattern.replace(b" ", b"(?:q.|r.{4})?"), re.DOTALL)


_DICT, _DICT_END = _form(rb"\x80\x02} \("), _form(rb"u\.")
_LIST, _PART, _PART_END = _form(rb"\] "), _form(rb"\("), _form(rb"e")
# Lists are written in parts of 1,000. The memory of a match grows with its length.
_INTEGERS = _form(rb"(?:K.){1,1000}")
_INTEGER = _form(rb"K(.)|M(..)")
_NUMBER = _form(rb" ")
_ROWS = _form(
    rb"cnumpy\.core\.multiarray\n_reconstruct\n cnumpy\nndarray\n K\0\x85 U\x01b \x87 R "
    rb"\(K\x01(?:K(.)|M(..))M\0\x0c\x86 "  # the shape: by 3,072
    rb"cnumpy\ndtype\n U\x02u1 K\0K\x01\x87 R \(K\x03U\x01\| NNN(?:J\xff{4}){2}K\0t b"
    rb"([\x88\x89])T(.{4})"
)
_ROWS_END = _form(rb" t b")
_TEXT = b"U"[0]


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
        items: dict[str, Value] = {}
        while not self._take(_DICT_END):
            (key,) = self._texts(1)
            items[key] = self._value()
        if left := len(self._pickled) - self._place:
            raise self.refusal(f"the pickle ends here, and {left} bytes are left")
        return items

    def _value(self) -> Value:
        if found := self._take(_INTEGER):
            return _integer(found[1] or found[2])
        if self._take(_LIST):
            return self._list()
        if self._pickled[self._place] == _TEXT:
            return self._texts(1)[0]
        return self._rows()

    def _list(self) -> bytes | list[str]:
        integers, texts = bytearray(), list[str]()
        while self._take(_PART):
            while found := self._take(_INTEGERS):
                integers += found[0][1::2]
            texts += self._texts()
            self._expect(_PART_END)
        if texts and integers:
            raise self.refusal("a list of text and integers")
        return texts or bytes(integers)

    def _texts(self, count: int | None = None) -> list[str]:
        """The texts that follow one after another; `count` of them, if that is given."""
        # A file has 10,000 names of files: one look at each is affordable.
        pickled, place, texts = self._pickled, self._place, list[str]()
        while pickled[place] == _TEXT and len(texts) != count:
            end = place + 2 + pickled[place + 1]
            texts.append(str(pickled[place + 2 : end], "latin-1"))
            place = _NUMBER.match(pickled, end).end()  # type: ignore[union-attr]  # it may be empty
        self._place = place
        if count is not None and len(texts) != count:
            raise self._unknown()
        return texts

    def _rows(self) -> Rows:
        found = self._expect(_ROWS)
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

    def _expect(self, form: re.Pattern[bytes]) -> re.Match[bytes]:
        found = self._take(form)
        if not found:
            raise self._unknown()
        return found

    def _unknown(self) -> ValueError:
        here = bytes(self._pickled[self._place :][:30])
        return self.refusal(f"{here!r} is not in the published files")


def _integer(content: bytes) -> int:
    return int.from_bytes(content, "little")
