"""Listing of the objects below a root, by many concurrent requests.

A store lists page by page, and the next page starts where the previous one ends. So the keys are
cut into ranges, which are listed concurrently. First the root is listed with a delimiter, for its
objects and classes. A range is then one class or, if there are many, a run of neighbours. When few
ranges are left, they are divided at guessed names, which need not exist.

obstore drops the slash at the end of a key, so the marker of a directory looks like an empty
object. A class with an empty or a deeper object is therefore listed with a delimiter, which
distinguishes both, and skips deeper objects.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby, pairwise
from typing import Any, TypeAlias

import numpy as np
import obstore
from obstore.exceptions import InvalidPathError

from .store import Store
from .versions import version_of

AT_ONCE = 32  # requests in flight
_PAGE = 1000  # keys, the most in a page of a store
_LONG = 4  # pages: a longer range may be divided
_FEW = 8  # ranges: with more, requests for guessed names are not worthwhile
_STEPS = 1, 2, 4, 8, 16  # from a letter of a name to the place of division

_Object: TypeAlias = tuple[str, int, bytes]  # name relative to the root, size, and version
Choose: TypeAlias = Callable[[list[bytes]], list[bytes]]
Each: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]


class KeyRun:
    """Successive objects, in the order of keys, of one class, or of none ("")."""

    def __init__(self, class_name: str, objects: Sequence[_Object]) -> None:
        names = [name.encode() for name, _, _ in objects]
        self.class_name, self.first, self.last = class_name, names[0], names[-1]
        self.names = b"".join(names)
        self.lengths = np.array([*map(len, names)], np.int64)
        self.sizes = np.array([size for _, size, _ in objects], np.int64)
        self.versions = np.array([version for _, _, version in objects], np.bytes_)


class OddKeys(Exception):  # noqa: N818  (how the store lists)
    """Keys that are not in byte order, or that obstore cannot represent."""


class _Range:
    """Objects of some neighbouring classes with after < name <= until.

    Attributes:
        pieces: the found objects.
        doubtful: classes that must be listed with a delimiter. Their other objects are skipped.
        ended: whether the listing is complete.
    """

    def __init__(self, store: Store, prefix: str, after: str, until: str) -> None:
        """Request nothing yet; `after` may be "", or a class and a slash."""
        self.pieces, self.doubtful, self.ended = list[KeyRun](), set[str](), False
        self._store, self._prefix = store, prefix
        self._first, self._after, self._until = "", after, until
        self._stream: Iterator[Sequence[Any]] | None = None

    def more(self) -> None:
        """List the next pages. After an error, another call continues."""
        self._first = ""
        for _ in range(_LONG):
            if not self.ended:
                try:
                    self._page()
                except InvalidPathError:
                    raise OddKeys from None
                except BaseException:
                    self._stream = None
                    raise

    def _page(self) -> None:
        if self._stream is None:
            name, slash, _ = self._after.partition("/")
            below = self._prefix + (name if slash and self._until <= f"{name}0" else "")
            below, offset = below.rstrip("/"), self._prefix + self._after
            start = None if offset.rstrip("/") == below else offset
            self._stream = obstore.list(self._store, below or None, offset=start, chunk_size=_PAGE)
        cut = len(self._prefix)
        found = [(it["path"][cut:], it["size"], version_of(it)) for it in next(self._stream, ())]
        # Markers look empty, and are sorted as if with their slash.
        names = [self._after, *(name for name, size, _ in found if size)]
        if any(before >= after for before, after in pairwise(names)):
            raise OddKeys
        if not found:
            self.ended = True
            return
        self._first = self._first or found[0][0]
        self._after = max(self._after, *(name for name, _, _ in found))
        for name, group in groupby(found, lambda each: each[0].partition("/")[0]):
            objects = [it for it in group if "/" in it[0] and it[0] <= self._until]
            if any(not size or file.count("/") > 1 for file, size, _ in objects):
                self.doubtful.add(name)
            elif objects:
                self.pieces.append(KeyRun(name, objects))
        if (name := found[-1][0].partition("/")[0]) in self.doubtful:
            self._after, self._stream = max(self._after, f"{name}0"), None  # "0" follows the slash
        self.ended = self._after >= self._until

    def divided(self) -> list[_Range]:
        """Divide the rest of this range; return the new ranges that follow."""
        bounds = [each for each in _guesses(self._first, self._after) if each < self._until]
        bounds.append(self._until)
        self._until = bounds[0]
        return [_Range(self._store, self._prefix, *each) for each in pairwise(bounds)]


def _guesses(first: str, last: str) -> list[str]:
    """Guess prefixes of later names, in order; for "b05" and "b07": "b08", "b1", "b2"..."""
    found = list[str]()
    letters = enumerate(zip(first, last, strict=False))
    differ = next((at for at, (one, other) in letters if one != other), len(last) - 1)
    for at in range(differ, -1, -1):
        if last[at].isalnum() and last[at].isascii():
            further = [chr(ord(last[at]) + step) for step in _STEPS]
            found += [last[:at] + each for each in further if each.isalnum() and each.isascii()]
    return found


def _ranges(store: Store, prefix: str, classes: list[str], chosen: set[str]) -> list[_Range]:
    """Make ranges of one chosen class each or, if there are many, of runs of classes."""
    size = -(-len(chosen) // AT_ONCE)
    after = {name: f"{before}0" for before, name in pairwise(classes)}
    found = list[_Range]()
    for wanted, group in groupby(classes, chosen.__contains__):
        run = [*group] if wanted else []
        for part in (run[start : start + size] for start in range(0, len(run), size or 1)):
            start = f"{part[0]}/" if len(part) == 1 else after.get(part[0], "")
            found.append(_Range(store, prefix, start, f"{part[-1]}0"))
    return found


def list_objects(
    store: Store, prefix: str, each: Each, choose: Choose, in_order: bool
) -> list[KeyRun]:
    """List the objects `prefix + file` and, of chosen classes, `prefix + class/file`, in order.

    The prefix is empty or ends with a slash. `each` calls a function for many items concurrently,
    and returns the results. `in_order`: the store lists keys in order, and can start after any key.

    Raises:
        OddKeys: keys are not in order, or obstore cannot represent one, perhaps a deeper one.
    """
    delimited = partial(_delimited, store, prefix)
    ((top, classes),) = each(delimited, [""])
    classes.sort(key=lambda name: f"{name}/")
    chosen = {name.decode() for name in choose([name.encode() for name in classes])}
    cuts = {bisect_left(top, (f"{name}/",)) for name in chosen} | {0, len(top)}
    pieces = [KeyRun("", top[start:end]) for start, end in pairwise(sorted(cuts))]
    doubtful = chosen
    if in_order:
        found = _listed(_ranges(store, prefix, classes, chosen), each)
        doubtful = set().union(*(part.doubtful for part in found))
        flat = chain.from_iterable(part.pieces for part in found)
        pieces += [piece for piece in flat if piece.class_name not in doubtful]
    names = sorted(doubtful)
    exact = zip(names, each(delimited, names), strict=True)
    pieces += [KeyRun(name, objects) for name, (objects, _) in exact if objects]
    pieces.sort(key=lambda piece: piece.first)
    if any(before.last >= after.first for before, after in pairwise(pieces)):
        raise OddKeys
    return pieces


def _delimited(store: Store, prefix: str, name: str) -> tuple[list[_Object], list[str]]:
    """List the objects and the directories directly in a class, or with "" in the root."""
    below, cut = (prefix + name).rstrip("/"), len(prefix)
    found = obstore.list_with_delimiter(store, below or None)
    objects = {
        each["path"][cut:]: (each["size"], version_of(each))
        for each in found["objects"]
        if len(each["path"]) > len(below)  # not the marker of this directory
    }
    classes = {each[cut:] for each in found["common_prefixes"]}
    return sorted((name, *known) for name, known in objects.items()), [*classes]


def _listed(ranges: list[_Range], each: Each) -> list[_Range]:
    """List ranges to their end; return them and the ranges split off."""
    found = [*ranges]
    while ranges:
        few = len(ranges) <= _FEW
        each(_Range.more, ranges)
        ranges = [part for part in ranges if not part.ended]
        if few:
            new = [*chain.from_iterable([part.divided() for part in ranges])]
            ranges += new
            found += new
    return found
