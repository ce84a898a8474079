"""Lists of name patterns, matched as `fn.readers.file` matches them."""

import ctypes
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TypeAlias, cast

from ..contract._types import PathLike

Patterns: TypeAlias = PathLike | Iterable[PathLike]
"""One pattern of fnmatch(3), or several."""

NameFilter: TypeAlias = Callable[[list[bytes]], list[bytes]]
"""Keeps the matching names of a list, in their order."""

_FNM_CASEFOLD = 1 << 4
# A NUL ends a pattern of fnmatch(), and the locale decides how letters beyond ASCII are folded.
_STAR_AND_LITERAL = re.compile(rb"\*([^*?\[\\\0\x80-\xff]*)")


def compile_filters(
    argument: str, patterns: Patterns | None, *, case_sensitive: bool
) -> NameFilter:
    """Make a filter: glibc's fnmatch() with any of the patterns; None accepts all.

    Errors name the `argument`.
    """
    if patterns is None:
        return list
    globs = [path_bytes(argument, each) for each in as_list(argument, patterns, PATH_TYPES)]
    if not globs:
        raise ValueError(f"{argument} must not be empty: no name would pass")
    fnmatch, flags = _fnmatch(), 0 if case_sensitive else _FNM_CASEFOLD

    def match(name: bytes) -> bool:
        return any(fnmatch(glob, name, flags) == 0 for glob in globs)

    literals = list(filter(None, map(_STAR_AND_LITERAL.fullmatch, globs)))
    # In a Turkish locale I is not the capital of i.
    usual_case = fnmatch(ascii_lowercase.encode(), ascii_uppercase.encode(), _FNM_CASEFOLD) == 0
    if len(literals) < len(globs) or not usual_case:
        return lambda names: [name for name in names if match(name)]
    # Faster for ASCII names: a call of fnmatch() takes longer than listing a file.
    fold = bytes if case_sensitive else bytes.lower
    suffixes = tuple(fold(literal[1]) for literal in literals)
    return lambda names: [
        n for n in names if (fold(n).endswith(suffixes) if n.isascii() else match(n))
    ]


def _fnmatch() -> Callable[[bytes, bytes, int], int]:
    """Return fnmatch() of this process's libc, as called by DALI; 0 is a match."""
    function = ctypes.CDLL(None).fnmatch
    function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int]
    return cast("Callable[[bytes, bytes, int], int]", function)


PATH_TYPES = (str, bytes, os.PathLike)
"""The types of one path or pattern, as opposed to a list of them."""


def as_list(argument: str, value: Any, scalars: tuple[type, ...]) -> list[Any]:
    """Return an argument as a list: one value, of a type in `scalars`, or several."""
    if isinstance(value, (set, frozenset)):  # its order may differ from process to process
        raise TypeError(f"{argument} must be one value or a list, not the set {value!r}")
    try:
        return [value] if isinstance(value, scalars) else list(value)
    except TypeError:
        raise TypeError(f"{argument} must be one value or a list, not {value!r}") from None


def path_bytes(argument: str, value: Any) -> bytes:
    """Return a path or a pattern as bytes: as DALI in UTF-8, if the locale lacks a character."""
    try:
        return os.fsencode(value)
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):
            return str(os.fspath(value)).encode("utf-8", "surrogateescape")
    except TypeError:
        pass
    raise TypeError(f"{argument} must be str, bytes or os.PathLike, not {value!r}")
