"""Samples that are left out: those that a record of bad samples names."""

import json
import os
import warnings
from dataclasses import replace

import numpy as np

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.objects import scheme
from .locations import local_path

_PART = 1 << 16  # names that are Python objects at the same time


def without(catalog: Catalog, listed: PathLike) -> Catalog:
    """The samples of a catalog of whole files, but those that the file `listed` names.

    A line of it is a JSON object, as `bad_samples` and `python -m dali_storage check` write them.
    Its `path` counts, a URL or an absolute path; its index does not.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line of it is wrong, or no sample is left.
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
        what = (
            f"{len(named - found):,} of {len(named):,} files in {path!r} are not among the samples"
        )
        warnings.warn(f"exclude: {what}; was it made for other data?", stacklevel=2)
    if not keep.any():
        raise ValueError(f"exclude={path!r} leaves no samples")
    lengths = np.diff(catalog.offsets)
    names = np.frombuffer(catalog.names, np.uint8)[np.repeat(keep, lengths)].tobytes()
    return replace(
        catalog,
        names=names,
        offsets=np.concatenate([[0], np.cumsum(lengths[keep])]),
        labels=catalog.labels[keep],
        sizes=None if catalog.sizes is None else catalog.sizes[keep],
        versions=None if catalog.versions is None else catalog.versions[keep],
    )


def _paths(path: str) -> list[bytes]:
    with open(path, "rb") as lines:
        found = []
        for number, line in enumerate(lines, 1):
            try:
                found.append(os.fsencode(json.loads(line)["path"]))
            except (KeyError, TypeError, ValueError):
                what = f"expected a JSON object with a path, not {line[:60]!r}"
                raise ValueError(f"exclude={path!r}, line {number}: {what}") from None
    return found
