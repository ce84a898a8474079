"""Which names pass: lists of patterns, matched as `fn.readers.file` matches them."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TypeAlias, cast

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Filters: TypeAlias = str | bytes | Iterable[str | bytes]
Choice: TypeAlias = Callable[[list[bytes]], list[bytes]]

_FNM_CASEFOLD = 1 << 4
# A NUL ends a pattern of fnmatch(), and letters beyond ASCII are for the locale to fold.
_STAR_AND_LITERAL = re.compile(rb"\*([^*?\[\\\0\x80-\xff]*)")


def choice(option: str, filters: Filters | None, case_sensitive: bool) -> Choice:
    """Chooses the names that glibc's fnmatch() matches with one of the patterns; None is all."""
    if filters is None:
        return list
    patterns = [path_bytes(option, pattern) for pattern in elements(option, filters, (str, bytes))]
    if not patterns:
        raise ValueError(f"{option} is an empty list, which no name can pass")
    fnmatch, flags = _fnmatch(), 0 if case_sensitive else _FNM_CASEFOLD

    def match(name: bytes) -> bool:
        return any(fnmatch(pattern, name, flags) == 0 for pattern in patterns)

    literals = list(filter(None, map(_STAR_AND_LITERAL.fullmatch, patterns)))
    # In a Turkish locale I is not the capital of i.
    usual_case = fnmatch(ascii_lowercase.encode(), ascii_uppercase.encode(), _FNM_CASEFOLD) == 0
    if len(literals) < len(patterns) or not usual_case:
        return lambda names: [name for name in names if match(name)]
    return _suffix_choice(tuple(literal[1] for literal in literals), case_sensitive, match)


def _suffix_choice(
    suffixes: tuple[bytes, ...], case_sensitive: bool, match: Callable[[bytes], bool]
) -> Choice:
    """A short cut for ASCII names: calling fnmatch() takes longer than listing a file."""
    folded = tuple(map(bytes.lower, suffixes))

    def with_case(names: list[bytes]) -> list[bytes]:
        return [n for n in names if (n.endswith(suffixes) if n.isascii() else match(n))]

    def without_case(names: list[bytes]) -> list[bytes]:
        return [n for n in names if (n.lower().endswith(folded) if n.isascii() else match(n))]

    return with_case if case_sensitive else without_case


def _fnmatch() -> Callable[[bytes, bytes, int], int]:
    """The fnmatch() of this process's libc, the one that DALI calls; it returns 0 for a match."""
    function = ctypes.CDLL(None).fnmatch
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    function.restype = ctypes.c_int
    return cast("Callable[[bytes, bytes, int], int]", function)


def elements(option: str, value: Any, scalars: tuple[type, ...]) -> list[Any]:
    """The elements of an option that is one or many; DALI takes one for a list of one."""
    try:
        return [value] if isinstance(value, scalars) else list(value)
    except TypeError:
        raise TypeError(f"{option} cannot be {value!r}") from None


def path_bytes(option: str, value: Any) -> bytes:
    """A name or a pattern as bytes, or a TypeError that names the option."""
    try:
        return os.fsencode(value)
    except TypeError:
        raise TypeError(f"{option} must be str, bytes or os.PathLike, not {value!r}") from None
