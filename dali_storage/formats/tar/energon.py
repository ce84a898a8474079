"""Data sets that Megatron-Energon has prepared: one index of all tars, in SQLite.

These files of the folder `.nv-meta` are read, as energon 7 writes them (its modules `indexing` and
`metadata` in flavors/webdataset/):

    .info.json    {"shard_counts": {TAR: number of samples}}; the id of a tar is its position here
    split.yaml    split_parts: the tars of each split, in any order; exclude: tars, and samples as
                  TAR/KEY; names may have braces: {000..012} or {a,b}
    index.sqlite  samples(tar_file_id, sample_key, sample_index, byte_offset, byte_size), where the
                  bytes begin at the first header; and sample_parts(tar_file_id, sample_index,
                  part_name, content_byte_offset, content_byte_size)
"""

from __future__ import annotations

import io
import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, product
from operator import itemgetter
from typing import BinaryIO
from urllib.parse import quote

from ...contract.catalog import Catalog, join_path, open_regular
from ...contract.errors import named
from ...contract.objects import scheme
from ..files import Files
from ..lists import below, parsed, wrong
from . import webdataset
from .components import Selection

_PARTS = """
SELECT sample_index, sample_key,
    content_byte_offset - byte_offset BETWEEN 512 AND byte_size - content_byte_size,
    part_name || ' ' || content_byte_offset || ' ' || content_byte_size
    || ' ' || sample_key || '.' || part_name
FROM sample_parts JOIN samples USING (tar_file_id, sample_index)
WHERE tar_file_id = ? ORDER BY sample_index, content_byte_offset"""
_SCAN = "give the tars as paths, with indexes by python -m dali_storage index, or with none"
_AGAIN = f"prepare the data set again by energon 7, or {_SCAN}"
_BRACES = re.compile(r"\{([^{}]*)\}")
_TEXT = r"""'[^']+'|"[^"\\]+"|[\w./](?:[^:#'"\[\]]*[^:#'"\[\]\s])?"""
# A key, with or without an empty list; the item of a list; a comment.
_LINE = re.compile(rf"( *)(?:- +({_TEXT})|({_TEXT}):(?: +\[\])?)? *(?:#.*|---)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergonIndex(Files):
    """A prepared data set, whose index is read in the form of DALI's index of each tar.

    Attributes:
        root: the directory or URL of the tars.
        index: the path of index.sqlite.
        counts: the number of samples of each tar, in the order of the ids.
        chosen: the tars to read.
        excluded: the samples to leave out, as TAR/KEY.
    """

    root: bytes
    index: bytes
    counts: Mapping[str, int]
    chosen: Sequence[str]
    excluded: frozenset[str] = frozenset()

    @property
    def names(self) -> list[bytes]:
        """The paths or URLs of the chosen tars."""
        return [join_path(self.root, os.fsencode(each)) for each in self.chosen]

    def find(self, selection: Selection, may_be_missing: bool, files: Files) -> Catalog:
        """Make the catalog of the chosen tars; see `webdataset.find()`."""
        indexes = [b"%b, %b" % (self.index, os.fsencode(each)) for each in self.chosen]
        reading = replace(self, remote=files.remote)
        return webdataset.find(self.names, indexes, selection, may_be_missing, reading)

    @contextmanager
    def opened(self, names: Sequence[bytes]) -> Iterator[Iterator[BinaryIO]]:
        """Yield DALI's index of each tar; a name is that of the database and of the tar.

        Raises:
            ValueError: the database is damaged, or contradicts .info.json.
            OSError: the database cannot be read.
        """
        with named(self.index, f"; {_AGAIN}"), open_regular(self.index) as file:
            if file.read(16) != b"SQLite format 3\0":
                raise self._wrong("it is not a database of SQLite")
        for log in (self.index + b"-wal", self.index + b"-journal"):
            if os.path.exists(log) and os.path.getsize(log):
                raise self._wrong(f"{os.fsdecode(log)!r} shows that it was not written to the end")
        # Immutable, so that no lock or log is written beside it.
        uri = f"file:{quote(os.path.abspath(self.index))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = bytes
            with closing(self._indexes(database, names)) as indexes:
                yield indexes

    def _indexes(
        self, database: sqlite3.Connection, names: Iterable[bytes]
    ) -> Generator[BinaryIO, None, None]:
        numbers = {name: number for number, name in enumerate(self.counts)}
        try:
            ((last,),) = database.execute("SELECT MAX(tar_file_id) FROM samples")
            if last is not None and last >= len(numbers):
                what = f"samples of tar {last}, but .info.json has only {len(numbers):,} tars"
                raise self._wrong(f"it has {what}")
            for name in names:
                tar = os.fsdecode(name[len(self.index) + 2 :])
                lines = self._lines(tar, database.execute(_PARTS, (numbers[tar],)))
                yield io.BytesIO(b"".join(lines))
        except sqlite3.Error as error:  # such as a missing table: energon 6 has no parts
            raise self._wrong(f"it has no places of files ({error})") from None

    def _lines(self, tar: str, rows: Iterable[tuple[int, bytes, int, bytes]]) -> list[bytes]:
        """Return the lines of DALI's index v1.2 of a tar, made of the rows of `_PARTS`."""
        lines, count = [b""], 0
        for (sample, key), parts in groupby(rows, itemgetter(0, 1)):
            *_, within, texts = zip(*parts, strict=True)
            if sample != count or not all(within) or None in texts:
                what = f"expected sample {count}, with its files between its first and last byte"
                raise self._wrong(f"{tar!r}, sample {sample}: {what}")
            count += 1
            line = b" ".join(texts)
            if len(line.split()) != 4 * len(texts):
                what = "white space or no extension in a name, which an index cannot have"
                raise self._wrong(f"{tar!r}, {os.fsdecode(key)!r}: {what}", _SCAN)
            if f"{tar}/{os.fsdecode(key)}" not in self.excluded:
                lines.append(line + b"\n")
        if count != self.counts[tar]:
            what = f"it has {count:,} samples of {tar!r}, but .info.json has {self.counts[tar]:,}"
            raise self._wrong(what)
        if len(lines) == 1:
            raise self._wrong(f"all samples of {tar!r} are excluded", "exclude the tar itself")
        lines[0] = b"v1.2 %d\n" % (len(lines) - 1)
        return lines

    def _wrong(self, what: str, remedy: str = _AGAIN) -> ValueError:
        return wrong(self.index, f"{what}; {remedy}")


def data_set(root: bytes, index: bytes, split: str | None) -> EnergonIndex:
    """Return the tars below `root`, all or those of a split, by the files beside `index`.

    Without a split, nothing is excluded, and the tars are in the order of .info.json.

    Raises:
        ValueError: a file is damaged or of another version; there is no such split, or it is empty.
        OSError: a file cannot be read.
    """
    if scheme(index):
        what = "SQLite reads only files; copy the folder .nv-meta, and give the path of the copy"
        raise wrong(index, what)
    path = join_path(os.path.dirname(index), b".info.json")
    if not os.path.exists(path) and os.path.exists(path[:-4] + b"yaml"):
        raise wrong(index, f"energon 6 wrote it, without the places of files; {_AGAIN}")
    counts = parsed(path, _read(path), "the shard_counts of energon").get("shard_counts")
    if not isinstance(counts, dict) or not all(type(it) is int for it in counts.values()):
        raise wrong(path, f"expected the number of samples of each tar as shard_counts; {_AGAIN}")
    for name in counts:
        below(path, name)
    if split is None:
        return EnergonIndex(root=root, index=index, counts=counts, chosen=[*counts])
    path = path[: -len(b".info.json")] + b"split.yaml"
    parts, exclude = _splits(path)
    if split not in parts:
        raise wrong(path, f"there is no split {split!r}, only {', '.join(map(repr, parts))}")
    excluded = frozenset(each for it in exclude for each in _expanded(path, it))
    listed = (each for it in parts[split] for each in _expanded(path, it))
    chosen = [each for each in listed if each not in excluded]
    for name in chosen:
        if name not in counts:
            raise wrong(path, f"{name!r} of {split!r} is not in .info.json; {_AGAIN}")
    if not chosen:
        raise wrong(path, f"the split {split!r} has no tars; choose another")
    return EnergonIndex(root=root, index=index, counts=counts, chosen=chosen, excluded=excluded)


def _read(path: bytes) -> bytes:
    with open_regular(path) as file, named(path):
        return file.readall()


def _splits(path: bytes) -> tuple[dict[str, list[str]], list[str]]:
    """Return the tars of each split, and what is excluded, as patterns.

    Only keys and lists of names are understood, a line each: all that energon writes.
    """
    parts, excluded = dict[str, list[str]](), list[str]()
    section, names = "", None
    for number, line in enumerate(_read(path).decode(errors="replace").splitlines(), 1):
        found = _LINE.fullmatch(line)
        indent, item, key = found.groups() if found else ("", None, None)
        item, key = (it and it.strip("'\"") for it in (item, key))
        if item and names is not None:
            names.append(item)
        elif key and indent and section == "split_parts":
            names = parts.setdefault(key, [])
        elif key in ("split_parts", "exclude") and not indent:
            section, names = key, excluded if key == "exclude" else None
        elif found is None or item or key:
            what = f"line {number} is not understood: {line!r:.80}"
            raise wrong(path, f"{what}; write exclude and split_parts as lists, a name a line")
    return parts, excluded


def _expanded(path: bytes, name: str) -> Iterator[str]:
    """Return the names that a name with braces stands for, in their order."""
    words = _BRACES.split(name)  # every second one was in braces
    choices = [_choices(word) if at % 2 else [word] for at, word in enumerate(words)]
    if not all(choices) or re.search("[{}]", "".join(words)):
        what = f"{name!r}: expected {{000..012}} or {{a,b}} in braces"
        raise wrong(path, f"{what}; write the names one by one")
    return map("".join, product(*choices))


def _choices(text: str) -> list[str]:
    if ends := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        width = max(map(len, ends.groups())) if re.search(r"\b0\d", text) else 0
        return [f"{number:0{width}}" for number in range(int(ends[1]), int(ends[2]) + 1)]
    return text.split(",") if "," in text else []
