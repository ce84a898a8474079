"""Lists the objects below a root, in many requests at a time.

A store lists page by page, and each page says where the next one starts. So the keys are cut into
ranges that are listed at the same time. First the root is listed with a delimiter: this gives its
objects and its classes. A range is then one class or, where there are many, a run of neighbours. A
range that proves long is divided: at a class or, within a class, at names that there need not be.

obstore drops the slash at the end of a key, so the marker of a directory looks like an empty
object. A class with an empty object is therefore listed once more, with a delimiter: that tells
both apart.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import obstore
from obstore.exceptions import InvalidPathError

from ..._types import IntArray
from ...remote import Versions
from .store import Store
from .versions import version_of

AT_ONCE = 32
"""Requests under way."""

_PAGE = 1000  # keys, as many as stores give
_FEW = 8  # ranges: more are not worth the requests that find nothing, or what is not wanted
_LONG = 4  # pages: a range that has more may be divided

_Object: TypeAlias = tuple[str, int, bytes]
"""Name relative to the root, size, and version."""

Choose: TypeAlias = Callable[[list[bytes]], list[bytes]]
Each: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class Piece(NamedTuple):
    """Objects of one class, or of none (""), that follow each other in the order of keys."""

    class_name: str
    first: bytes
    last: bytes
    names: bytes
    lengths: IntArray
    sizes: IntArray
    versions: Versions


def _piece(class_name: str, objects: Sequence[_Object]) -> Piece:
    names = [name.encode() for name, _, _ in objects]
    lengths = np.fromiter(map(len, names), np.int64, len(names))
    sizes = np.fromiter((size for _, size, _ in objects), np.int64, len(names))
    versions = np.array([version for _, _, version in objects], np.bytes_)
    text = b"".join(names)
    return Piece(class_name, names[0], names[-1], text, lengths, sizes, versions)


class Unordered(Exception):  # noqa: N818  (how the store lists)
    """The keys do not come in the order of their bytes."""


class _Range:
    """Objects of some neighbouring classes: those with `prefix + name`, after < name <= until.

    Attributes:
        classes: those that are wanted, in the order of their keys.
        doubtful: classes that must be listed with a delimiter.
        ended: whether there is nothing more to list.
    """

    def __init__(
        self, store: Store, prefix: str, classes: list[str], after: str = "", until: str = ""
    ) -> None:
        """`after` and `until` may be "": from the start, to the end."""
        self.classes, self.ended = classes, False
        self.doubtful = set[str]()
        self._store, self._prefix = store, prefix
        self._after, self._until, self._pages = after, until, 0
        self._stream: Iterator[Sequence[Any]] | None = None
        self._found = list[list[Piece]]()

    def more(self) -> list[Piece]:
        """The next pages, without objects that lie deeper. Called anew, it goes on after an error.

        Raises:
            BaseError: obstore's, but for an object that it cannot read, which may lie deeper.
        """
        while len(self._found) < _LONG and not self.ended:
            try:
                self._found.append(self._page())
            except InvalidPathError:
                self.doubtful.update(self.classes)
                self.ended = True
            except BaseException:
                self._stream = None
                raise
        found, self._found = [*chain.from_iterable(self._found)], []
        return found

    def _page(self) -> list[Piece]:
        if self._stream is None:
            below = self._prefix + (self.classes[0] if len(self.classes) == 1 else "")
            offset = self._prefix + self._after if self._after else None
            self._stream = obstore.list(
                self._store, below.rstrip("/") or None, offset=offset, chunk_size=_PAGE
            )
        cut = len(self._prefix)
        entries = next(self._stream, ())
        self._pages += 1
        return self._pieces(
            [(each["path"][cut:], each["size"], version_of(each)) for each in entries]
        )

    def _pieces(self, found: list[_Object]) -> list[Piece]:
        # Markers, which look empty, are where their slash belongs.
        names = [self._after, *(name for name, size, _ in found if size)]
        if any(before >= after for before, after in pairwise(names)):
            raise Unordered
        self.ended = not found or bool(self._until and found[-1][0] > self._until)
        if self._until:
            found = [each for each in found if each[0] <= self._until]
        self._after = max((name for name, _, _ in found), default=self._after)
        in_class = [each for each in found if each[0].count("/") == 1]
        if found and not in_class:
            self._leave(found[-1][0].partition("/")[0])
        pieces = []
        for name, group in groupby(in_class, lambda each: each[0].partition("/")[0]):
            pieces.append(_piece(name, objects := [*group]))
            if not all(size for _, size, _ in objects):
                self.doubtful.add(name)
        return pieces

    def _leave(self, name: str) -> None:
        """Pass by the rest of a class, which is a deep tree: "0" follows the slash."""
        self.doubtful.add(name)
        self._after, self._stream = max(self._after, f"{name}0"), None
        self.ended = self.ended or len(self.classes) == 1

    def divided(self, guess: bool) -> list[_Range]:
        """Ranges that start further on; this one then ends before them.

        They start at a class or, with `guess`, at names that there need not be.
        """
        name, _, file = self._after.partition("/")
        left = bisect_right(self.classes, f"{name}/", key=lambda each: f"{each}/")
        if 0 < left < len(self.classes):
            if self._pages * (len(self.classes) - left) < _LONG * left:  # pages left, if like those
                return []
            cut = (left + len(self.classes)) // 2
            starts, parts = [f"{self.classes[cut - 1]}0"], [self.classes[cut:]]
            self.classes = self.classes[:cut]
        else:
            starts = [f"{name}/{each}" for each in _guesses(file)] if guess else []
            starts = [start for start in starts if not self._until or start < self._until]
            parts = [[name]] * len(starts)
        rows = zip(parts, starts, [*starts[1:], self._until], strict=False)
        found = [_Range(self._store, self._prefix, *row) for row in rows]
        self._until = starts[0] if starts else self._until
        return found


def _guesses(name: str) -> list[str]:
    """Starts of names past this one, in their order; of "b07.jpg": "b08", "b1" and "c"."""
    stem = name.rpartition(".")[0] or name
    steps = [at for at, letter in enumerate(stem) if letter.isascii() and letter not in ".~"]
    return [stem[:at] + chr(ord(stem[at]) + 1) for at in reversed(steps)]


def _ranges(store: Store, prefix: str, classes: list[str], chosen: set[str]) -> list[_Range]:
    """Ranges of the chosen ones of all classes: of one each, or a few that may be divided."""
    size = 1 if len(chosen) <= 2 * AT_ONCE else -(-len(chosen) // _FEW)
    found, before = list[_Range](), ""
    for wanted, group in groupby(classes, chosen.__contains__):
        run = [*group]
        for start in range(0, len(run) if wanted else 0, size):
            part = run[start : start + size]
            previous = run[start - 1] if start else before
            after = f"{previous}0" if previous else ""
            bounds = (after, f"{part[-1]}0") if len(part) > 1 else ()
            found.append(_Range(store, prefix, part, *bounds))
        before = run[-1]
    return found


def list_objects(
    store: Store, prefix: str, each: Each, choose: Choose, in_order: bool
) -> list[Piece]:
    """The objects `prefix + file` and, of chosen classes, `prefix + class/file`, in order.

    Args:
        store: the store of a bucket.
        prefix: empty, or ends with a slash.
        each: calls a function for many items at a time, and returns what it returns for each.
        choose: see `Remote.listing()`.
        in_order: the store lists in the order of keys, and past any key.

    Raises:
        Unordered: it does not.
        BaseException: as `each`, for errors of obstore.
    """
    delimited = partial(_delimited, store, prefix)
    ((top, classes),) = each(delimited, [""])
    classes.sort(key=lambda name: f"{name}/")
    chosen = {name.decode() for name in choose([name.encode() for name in classes])}
    cuts = {bisect_left(top, (f"{name}/",)) for name in chosen} | {0, len(top)}
    pieces = [_piece("", top[start:end]) for start, end in pairwise(sorted(cuts))]
    doubtful = chosen
    if in_order:
        found, doubtful = _flat(_ranges(store, prefix, classes, chosen), each)
        pieces += [piece for piece in found if piece.class_name not in doubtful]
    names = sorted(doubtful)
    exact = zip(names, each(delimited, names), strict=True)
    pieces += [_piece(name, objects) for name, (objects, _) in exact if objects]
    pieces.sort(key=lambda piece: piece.first)
    if any(before.last >= after.first for before, after in pairwise(pieces)):
        raise Unordered
    return pieces


def _delimited(store: Store, prefix: str, name: str) -> tuple[list[_Object], list[str]]:
    """The objects and the directories directly in a class, or with "" in the root."""
    below, cut = (prefix + name).rstrip("/"), len(prefix)
    found = obstore.list_with_delimiter(store, below or None)
    objects = sorted(
        (each["path"][cut:], each["size"], version_of(each))
        for each in found["objects"]
        if len(each["path"]) > len(below)  # not the marker of this directory
    )
    return objects, [each[cut:] for each in found["common_prefixes"]]


def _flat(ranges: list[_Range], each: Each) -> tuple[list[Piece], set[str]]:
    """The objects of all ranges, and the classes that must be listed with a delimiter."""
    pieces, doubtful = list[Piece](), set[str]()
    while ranges:
        for found in each(_Range.more, ranges):
            pieces += found
        doubtful.update(*(part.doubtful for part in ranges))
        ranges = [part for part in ranges if not part.ended]
        if len(ranges) < AT_ONCE:
            guess = len(ranges) < _FEW
            ranges += [*chain.from_iterable([part.divided(guess) for part in ranges])]
    return pieces, doubtful
