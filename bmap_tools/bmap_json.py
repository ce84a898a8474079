"""Strict JSON parser for large or hostile files.

`bmap_tools` writes one file of a map per line. `read_lines` parses such text in small groups of
rows: the rows of a million files would need a gigabyte as Python objects. `read_document` parses
any other layout as a whole. Both are stricter than `json.load`: no object may have a member twice,
and NaN and Infinity are not numbers.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from json import JSONDecodeError, JSONDecoder
from reprlib import Repr
from typing import Any, BinaryIO

INT64_MAX = 2**63 - 1

GROUP_BYTES = 1 << 14  # small enough to keep a group's objects in the processor's cache
MAX_BYTES = 1 << 27
"""Of text parsed as a whole, a document or a line; its objects may need 25 times as much."""
_FILES = b'\n"files": ['
_END = b"\n]\n}\n"

_short = Repr()
_short.maxstring = _short.maxother = 300
short_repr = _short.repr
"""The repr of a value for a message, shortened."""


class MapFormatError(ValueError):
    """An invalid or inconsistent bmap.json; the message names the file and the problem."""


class OtherLayout(Exception):  # noqa: N818 - no error: the document is read in another way
    """Text without one file per line, or not JSON at all."""


def read_lines(file: BinaryIO) -> tuple[dict[str, Any], Iterator[list[Any]]]:
    """Read a map with one file per line: the members before "files", and the rows in groups.

    Raises:
        OtherLayout: the text has another layout. The iterator, too, may raise this at any time.
        OSError: the file cannot be read.
    """
    text = b""
    while (end := text.find(_FILES)) < 0:
        block = file.read(max(GROUP_BYTES, len(text)))
        if not block or len(text) > MAX_BYTES:
            raise OtherLayout
        text += block
    start = end + len(_FILES)
    return _parse_part(text[:start] + b"]}"), _rows(file, text[start:])


def _rows(file: BinaryIO, text: bytes) -> Iterator[list[Any]]:
    """Iterate over the elements of "files" in groups; `text` was already read."""
    while block := file.read(max(GROUP_BYTES, len(text))):
        text += block
        # If the text on each side of this is JSON by itself, the whole text is JSON.
        end = text.rfind(b"],\n[") + 1
        if end:
            yield _parse_part(b"[%b]" % text[:end])
            text = text[end + 2 :]
        elif len(text) > MAX_BYTES:
            raise OtherLayout
    if not text.endswith(_END):
        raise OtherLayout
    yield _parse_part(b"[%b]" % text.removesuffix(_END))


def read_document(file: BinaryIO) -> dict[str, Any]:
    """Read a whole document of at most 128 MiB, in any layout.

    Raises:
        MapFormatError: the document is larger, is not one JSON object in UTF-8, is nested deeper
            than Python's recursion limit, or has an integer of more digits than Python converts.
        OSError: the file cannot be read.
    """
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise MapFormatError(
            f"larger than {MAX_BYTES >> 20} MiB, and damaged or not written with one file per line"
        )
    try:
        found = _decoder.decode(data.decode())
    except MapFormatError:
        raise
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise MapFormatError(f"line {line}: not UTF-8: {error.reason}") from None
    except JSONDecodeError as error:
        raise MapFormatError(f"line {error.lineno}: not JSON, or cut off: {error.msg}") from None
    except RecursionError:
        raise MapFormatError("nested too deeply") from None
    except ValueError:
        raise MapFormatError("an integer has too many digits") from None
    if not isinstance(found, dict):
        raise MapFormatError(f"must be a JSON object, not {short_repr(found)}")
    return found


def _parse_part(text: bytes) -> Any:
    try:
        return _decoder.decode(text.decode())
    except (ValueError, RecursionError):
        raise OtherLayout from None


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) == len(members):
        return found
    [(name, _)] = Counter(name for name, _ in members).most_common(1)
    raise MapFormatError(f"the member {short_repr(name)} occurs twice")


def _refuse_constant(constant: str) -> float:
    raise MapFormatError(f"{constant} is not a number")


_decoder = JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)


class Members:
    """The members of a JSON object, called `where` in messages, by name and type.

    All methods raise MapFormatError for a missing member, or one of another type.
    """

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise MapFormatError(f"{where} must be an object, not {short_repr(value)}")
        self._where = where
        self._members = value

    def __getitem__(self, name: str) -> Any:
        """A member of any type."""
        if name not in self._members:
            raise MapFormatError(f"{self._where} has no member {name!r}")
        return self._members[name]

    def integer(self, name: str) -> int:
        """An integer from 0 to 2**63 - 1."""
        value = self[name]
        if type(value) is not int or not 0 <= value <= INT64_MAX:  # bool is a subclass of int
            raise self.error(name, "an integer from 0 to 2**63 - 1")
        return value

    def text(self, name: str) -> str:
        """A string supported by `to_bytes()`."""
        value = self[name]
        if to_bytes([value]) is None:
            raise self.error(name, "a string without NUL or unpaired surrogates")
        return str(value)

    def text_or_null(self, name: str) -> str | None:
        """A string as for `text()`, or None for null."""
        return None if self[name] is None else self.text(name)

    def names(self, name: str) -> tuple[bytes, ...]:
        """A list of strings, as bytes."""
        value = self[name]
        names = to_bytes(value) if isinstance(value, list) else None
        if names is None:
            raise self.error(name, "a list of strings without NUL or unpaired surrogates")
        return tuple(names)

    def groups(self, name: str, length: int) -> Iterator[list[Any]]:
        """The elements of a list, in groups of at most `length`."""
        value = self[name]
        if not isinstance(value, list):
            raise self.error(name, "a list")
        for start in range(0, len(value), length):
            yield value[start : start + length]

    def error(self, name: str, expected: str) -> MapFormatError:
        """The error for an unexpected value of a member."""
        return MapFormatError(
            f"{self._where}: {name} must be {expected}, not {short_repr(self._members[name])}"
        )


def path_repr(path: bytes) -> str:
    """The repr of a path's text in JSON, shortened."""
    return short_repr(*to_text([path]))


def to_bytes(names: Iterable[Any]) -> list[bytes] | None:
    r"""Encode names for the operating system: in UTF-8, with "\udc80" to "\udcff" as other bytes.

    None if one is not a string, or has a NUL or a surrogate without such a byte. In a UTF-8 locale
    this is `os.fsencode`; the meaning of a map must not depend on the locale.
    """
    names = list(names)
    with suppress(TypeError, UnicodeEncodeError):
        joined = "\0".join(names).encode("utf-8", "surrogateescape")
        encoded = joined.split(b"\0") if names else []
        if len(encoded) == len(names):
            return encoded
    return None


def to_text(names: Iterable[bytes]) -> list[str]:
    """Decode names to strings, the inverse of `to_bytes()`."""
    return [name.decode("utf-8", "surrogateescape") for name in names]
