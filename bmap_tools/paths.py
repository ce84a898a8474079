"""Whether the paths of a map are plain, each there once, and in the directories that it names."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from .bmap_json import MapFormatError, shown
from .bmap_members import to_text


class PathChecks:
    """What must hold for all paths of a map together; they are seen in groups and not kept.

    All methods raise MapFormatError.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._classes: dict[bytes, bytes] = {}  # first component -> the first path with it

    def add(self, paths: Sequence[bytes]) -> None:
        """The next paths, at least one: each relative, without ".", ".." and empty components."""
        joined = b"\0%b\0" % b"\0".join(paths)
        components = joined.replace(b"/", b"\0")
        if b"\0\0" in components or (
            b"\0." in components and (b"\0.\0" in components or b"\0..\0" in components)
        ):
            path = next(path for path in paths if not is_plain(path))
            raise MapFormatError(
                f"{shown_path(path)}: a path must be relative to the root, without '.', '..' and "
                f"empty components"
            )
        self._hashes.extend(map(hash, paths))
        directory, slash, _ = paths[0].partition(b"/")
        if slash and joined.count(b"\0%b/" % directory) == len(paths):  # mostly
            self._classes.setdefault(directory, paths[0])
        else:
            firsts = {path.partition(b"/")[0]: path for path in reversed(paths) if b"/" in path}
            self._classes = firsts | self._classes

    def finish(self, directories: Iterable[bytes], paths: Iterable[bytes]) -> None:
        """After the last: whether each first component is in `directories`, and no path is twice.

        `paths` are all of them again; they are looked at only if there is suspicion.
        """
        if unknown := self._classes.keys() - set(directories):
            directory = min(unknown)
            raise MapFormatError(
                f"{shown_path(self._classes[directory])}: {shown_path(directory)} is not in "
                f"directories"
            )
        hashes = np.sort(self._hashes)
        if (hashes[1:] != hashes[:-1]).all():
            return
        seen: set[bytes] = set()
        for path in paths:
            if path in seen:
                raise MapFormatError(f"{shown_path(path)}: the path is there twice")
            seen.add(path)


def is_plain(path: bytes) -> bool:
    """Whether a path leads down from where it begins: not "/a", "a//b", "a/", "./a" or "a/..".

    The empty path does not.
    """
    return {b"", b".", b".."}.isdisjoint(path.split(b"/"))


def shown_path(path: bytes) -> str:
    """A path in a message."""
    return shown(*to_text([path]))
