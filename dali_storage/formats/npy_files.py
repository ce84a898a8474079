"""Which files `fn.readers.numpy` of DALI 2.4 finds (its loader/file_loader.h)."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any

import numpy as np

from .. import discovery
from ..catalog import Catalog, CatalogBuilder
from ..filters import compile_filters, path_bytes

# A line fits into the buffer of DALI's getline(), which has 16 KiB. A NUL ends the C string.
_LINE = re.compile(rb"(?=.{0,16383}\n?\Z)([^\0\n]*)(?:\0.*)?\n?", re.DOTALL)


def find(file_root: Any, file_list: Any, files: Any, file_filter: Any) -> Catalog:
    """The files of these arguments, as whole samples without labels; None means not given.

    Raises:
        ValueError: not one of the three, `files` and `file_list`, or no files are found.
        OSError, TypeError: as the functions of `discovery`.
    """
    if files is not None and file_list is not None:
        raise ValueError("files and file_list cannot both be given")
    pattern = path_bytes("file_filter", file_filter)
    if files is not None:
        found = discovery.from_files(files, file_root=file_root)
    elif file_list is not None:
        found = _listed(file_list, file_root)
    elif file_root is not None:
        found = _in_directory(file_root, pattern)
    else:
        raise ValueError("one of file_root, files and file_list must be given")
    return replace(found, labels=np.empty(0, np.int32))


def _in_directory(file_root: Any, pattern: bytes) -> Catalog:
    """The files of a directory as "./name", then those of its directories; sorted as bytes."""
    tree = discovery.directory(file_root)
    choose = compile_filters("file_filter", [pattern], case_sensitive=True)
    builder = CatalogBuilder()
    folders = [b".", *sorted(tree.directories())]
    for folder in folders:
        names = sorted(choose(tree.files(folder)))
        builder.extend(names, [0] * len(names), prefix=folder + b"/")
    if not len(builder):
        raise ValueError(
            f"no files found: none in {os.fsdecode(tree.root)!r} or in one of its "
            f"{len(folders) - 1} directories passes file_filter={os.fsdecode(pattern)!r}"
        )
    return builder.build(tree.root)


def _listed(file_list: Any, file_root: Any) -> Catalog:
    """The files that the lines of a text file name. Only empty lines are skipped."""
    path = discovery.local_path("file_list", file_list)
    root = path.rpartition(b"/")[0]
    if file_root is not None:
        root = discovery.local_path("file_root", file_root)
    builder = CatalogBuilder()
    with open(os.fsdecode(path), "rb") as lines:
        for number, line in enumerate(lines, 1):
            match = _LINE.fullmatch(line)
            if match is None:
                what = f"file_list {os.fsdecode(path)!r}, line {number}: it is longer than"
                raise ValueError(f"{what} 16383 bytes: expected the name of one file")
            if match[1]:
                discovery.require_local(f"line {number} of file_list", match[1])
                builder.append(match[1], 0)
    if not len(builder):
        raise ValueError(f"no files found in file_list {os.fsdecode(path)!r}")
    return builder.build(root)
