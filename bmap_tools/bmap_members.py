"""The members of a JSON object, asked for by name and type; and names as text and as bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .bmap_json import MapFormatError, shown

INT64_MAX = 2**63 - 1


class Members:
    """The members of an object, asked for by name and type.

    All methods raise MapFormatError, with `where`, for what is missing or of another type.

    Args:
        where: what the object is, for messages.
        value: what should be the object.
    """

    def __init__(self, where: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise MapFormatError(f"{where} must be an object, not {shown(value)}")
        self._where = where
        self._members = value

    def __getitem__(self, name: str) -> Any:
        """A member of any type."""
        if name not in self._members:
            raise MapFormatError(f"{self._where} has no member {name!r}")
        return self._members[name]

    def integer(self, name: str) -> int:
        """A member that is an integer of 0 to 2**63 - 1."""
        value = self[name]
        if type(value) is not int or not 0 <= value <= INT64_MAX:  # a bool is an int, too
            raise self.wrong(name, "an integer of 0 to 2**63 - 1")
        return value

    def text(self, name: str) -> str:
        """A member that is a string for which to_bytes() knows the bytes."""
        value = self[name]
        if to_bytes([value]) is None:
            raise self.wrong(name, "a string, without NUL or half a surrogate pair")
        return str(value)

    def text_or_null(self, name: str) -> str | None:
        """The same, or None for null."""
        return None if self[name] is None else self.text(name)

    def path(self, name: str) -> bytes:
        """A member that is a string, as bytes."""
        return self.text(name).encode("utf-8", "surrogateescape")

    def names(self, name: str) -> tuple[bytes, ...]:
        """A member that is a list of strings, as bytes."""
        value = self[name]
        names = to_bytes(value) if isinstance(value, list) else None
        if names is None:
            raise self.wrong(name, "a list of strings, without NUL or half a surrogate pair")
        return tuple(names)

    def wrong(self, name: str, expected: str) -> MapFormatError:
        """The error of a member that is not what it must be."""
        return MapFormatError(
            f"{self._where}: {name} must be {expected}, not {shown(self._members[name])}"
        )


def to_bytes(names: Iterable[Any]) -> list[bytes] | None:
    r"""Names as the operating system has them: UTF-8, and "\udc80" to "\udcff" other bytes.

    None if one is no string, has a NUL, or half a surrogate pair that stands for no such byte. In a
    UTF-8 locale this is `os.fsencode`; what a map means must not depend on the locale.
    """
    names = list(names)
    if not set(map(type, names)) <= {str}:
        return None
    try:
        joined = "\0".join(names).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    encoded = joined.split(b"\0") if names else []
    return encoded if len(encoded) == len(names) else None


def to_text(names: Iterable[bytes]) -> list[str]:
    """The strings that to_bytes() makes these names of."""
    return [name.decode("utf-8", "surrogateescape") for name in names]
