"""Leaves out the samples in a list of bad samples."""

import json
import os
import warnings
from dataclasses import replace
from typing import cast

import numpy as np

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.objects import scheme
from ..contract.remote import Listing
from ..samples.listing import select
from ..samples.locations import local_path
from ..samples.patterns import path_bytes

_PART = 1 << 16  # names that are Python objects at the same time


def without(catalog: Catalog, listed: PathLike) -> Catalog:
    """Leave out the files whose `path` is in a file of JSON lines; a catalog of whole files.

    Raises:
        OSError: the file of JSON lines cannot be read.
        ValueError: one of its lines is wrong, or no sample is left.
    """
    path = os.fsdecode(local_path("exclude", listed))
    named, found = {*_paths(path)}, set[bytes]()
    keep = np.ones(len(catalog), bool)
    root, is_url = catalog.root, bool(scheme(catalog.root) or scheme(catalog.name(0)))
    absolute = catalog if is_url else replace(catalog, root=os.path.abspath(root or b"."))
    for start in range(0, len(keep) if named else 0, _PART):
        files = np.arange(start, min(start + _PART, len(keep)))
        for file, name in enumerate(absolute.file_paths(files), start):
            if not is_url and (b"/." in name or b"//" in name):
                name = os.path.normpath(name)
            if name in named:
                keep[file] = False
                found.add(name)
    if named != found:
        missing = f"{len(named - found):,} of {len(named):,} files in {path!r}"
        what = f"exclude: {missing} are not among the samples; use a list of this data set"
        warnings.warn(what, stacklevel=2)
    if not keep.any():
        raise ValueError(f"exclude={path!r} leaves no samples; shorten the list")
    names, offsets = select(cast("Listing", catalog), np.flatnonzero(keep))
    columns = {name: getattr(catalog, name) for name in ("labels", "sizes", "versions")}
    kept = {name: column[keep] for name, column in columns.items() if column is not None}
    return replace(catalog, names=names, offsets=offsets, **kept)


def _paths(path: str) -> list[bytes]:
    with open(path, "rb") as lines:
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(path_bytes("path", json.loads(line)["path"]))
            except (KeyError, TypeError, ValueError):
                what = f"expected a JSON object with a path, not {line[:60]!r}"
                raise ValueError(f"exclude={path!r}, line {number}: {what}") from None
    return found
