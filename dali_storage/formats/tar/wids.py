"""Lists of tars by wids: shardindex.json, as `widsindex create` writes it.

    {"wids_version": 1, "base": DIRECTORY or null,
     "shardlist": [{"url": ..., "nsamples": ..., "filesize": ..., "md5sum": ...}, ...]}

A URL may be a path, relative to `base`, by default to the directory of the list.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

from ...contract.catalog import Catalog, join_path
from ...contract.errors import ContainerChangedError
from ...contract.objects import scheme
from ..files import LOCAL, MOST, Files, sizes
from ..lists import below, encoded, parsed, wrong
from . import webdataset
from .components import Selection


class ShardList:
    """The tars of a list.

    Attributes:
        names: the paths or URLs of the tars.
        md5sums: their MD5 in hex digits; None where the list has none.
    """

    def __init__(self, path: bytes, files: Files = LOCAL) -> None:
        """Read a list.

        Raises:
            ValueError: the list is damaged, has another version, or no tars.
            OSError: the list cannot be read.
        """
        with files.opened([path]) as opened:
            found = parsed(path, next(opened).read(), "a shardlist of wids")
        if found.get("datasets"):
            what = "it lists several data sets; give each a list and a reader of its own"
            raise wrong(path, f"{what}, and mix them by readers.mix")
        rows = found.get("shardlist")
        rows = rows if isinstance(rows, list) else []
        if found.get("wids_version") != 1 or not rows or not all(map(_is_row, rows)):
            what = "expected wids_version 1, and url and nsamples of each tar in shardlist"
            raise wrong(path, f"{what}; make the list again")
        self._path, self._rows = path, rows
        base = encoded(path, found.get("base") or "")
        base = base if scheme(base) else join_path(os.path.dirname(path), base)
        self.names = [self._name(base, row["url"]) for row in rows]
        self.md5sums = [row.get("md5sum") for row in rows]

    def find(
        self,
        indexes: Sequence[bytes] | None,
        selection: Selection,
        may_be_missing: bool,
        files: Files,
    ) -> Catalog:
        """Make the catalog of the tars, see `webdataset.find()`, and compare it with the list.

        Raises:
            ContainerChangedError: a tar has another size, or another number of samples.
        """
        found = webdataset.find(self.names, indexes, selection, may_be_missing, files)
        ends = sizes(found, [FileNotFoundError] if may_be_missing else [])
        counts: Iterable[int] = [] if found.containers is None else found.containers
        for tar, (row, end, count) in enumerate(zip(self._rows, ends, counts, strict=True)):
            most, nbytes = row["nsamples"], row.get("filesize")
            nbytes = end if nbytes is None else nbytes
            least = 0 if selection.missing == "skip" else most
            if end not in (MOST, nbytes) or not least <= count <= most:
                what = f"{end:,} bytes and {count:,} samples, but {nbytes:,} and {most:,}"
                where = f"in the list {os.fsdecode(self._path)!r}; make the list again"
                raise ContainerChangedError(found.file_path(tar), f"it has {what} {where}")
        return found

    def _name(self, base: bytes, url: str) -> bytes:
        name = encoded(self._path, url)
        is_whole = scheme(name) or name.startswith(b"/")
        return name if is_whole else join_path(base, below(self._path, url))


def _is_row(row: Any) -> bool:
    if not isinstance(row, Mapping) or not isinstance(row.get("url"), str):
        return False
    return type(row.get("nsamples")) is int and type(row.get("filesize", 0)) in (int, NoneType)
