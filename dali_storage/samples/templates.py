"""Groups files by their names, with templates such as `images/{}.jpg`.

The text in place of `{}` is the *key* of a file: any text, also with slashes, but not empty. The
files of one key, one for each template, are the pieces of a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..contract._types import PathLike
from ..contract.catalog import Catalog, join_path
from ..contract.objects import scheme
from ..contract.remote import Remote
from .locations import location
from .walk import FoundFiles


class Template(NamedTuple):
    """The names of files: `before + key + after`."""

    before: bytes
    after: bytes

    @classmethod
    def parse(cls, argument: str, given: PathLike) -> Template:
        """Parse an argument; raise ValueError or TypeError if it is not a template."""
        name = location(argument, given)
        before, *after = name.split(b"{}")
        if len(after) != 1 or (scheme(name) and before.count(b"/") < 3):
            where = ", and not in its bucket" if scheme(name) else ""
            what = f"{argument} must have one {{}}, for the key of a sample{where}"
            raise ValueError(f"{what}, not {os.fsdecode(name)!r}; or give a list of files")
        return cls(before, *after)

    def keys(self, listed: FoundFiles) -> dict[bytes, int]:
        """Return the keys of all files of this template, and their numbers in the listing."""
        names, (before, after) = listed.names, self
        return {
            name[len(before) : len(name) - len(after)]: row
            for row in listed.below(before[: before.rfind(b"/") + 1])
            if (name := names[row]).startswith(before)
            and name.endswith(after)
            and len(name) > len(before) + len(after)
        }


def checked_keys(argument: str, keys: Iterable[PathLike]) -> list[bytes]:
    """Return the keys of samples as bytes; ValueError and TypeError name the argument."""
    if found := [location(argument, key) for key in keys]:
        return found
    raise ValueError(f"{argument} must not be empty")


def find(
    templates: Sequence[Template],
    root: bytes,
    keys: Sequence[bytes] | None,
    labels: npt.NDArray[np.int32] | None,
    source: str = "",
    *,
    skip: bool,
    remote: Remote | None,
) -> Catalog:
    """Find the samples: a piece for each template, from one listing of each directory.

    Args:
        templates: at least one.
        root: the base of relative templates: a directory or a URL.
        keys: the keys of the samples, in order; they may repeat. None: all, in byte order.
        labels: one for each of `keys`; or None.
        source: the origin of keys, for errors; or "".
        skip: leave out keys without a file of each template.
        remote: lists objects.

    Raises:
        ValueError: a file is missing, or no sample is left; or objects cannot be listed.
        OSError: a directory cannot be read, or a request to a store fails; names the path or URL.
    """
    listed = FoundFiles(root, remote)
    outer_first = sorted(templates, key=lambda each: each.before.count(b"/"))
    found = {each: each.keys(listed) for each in outer_first}
    columns = [found[each] for each in templates]
    keys = sorted(set[bytes]().union(*columns)) if keys is None else keys
    complete = set(columns[0]).intersection(*columns[1:])
    whole = np.fromiter(map(complete.__contains__, keys), bool, len(keys))
    if not whole.any() and (skip or not any(columns)):
        names = [os.fsdecode(join_path(root, b"{}".join(each))) for each in templates]
        counts = [f"{len(it):,} fit {name!r}" for name, it in zip(names, columns, strict=True)]
        raise ValueError(f"files: no key has a file of each template: {', '.join(counts)}")
    if not whole.all() and not skip:
        key = keys[int(whole.argmin())]
        which = next(number for number, it in enumerate(columns) if key not in it)
        path, shown = (os.fsdecode(it) for it in (join_path(root, key.join(templates[which])), key))
        count = f"{(~whole).sum():,} of {whole.size:,} keys lack a file"
        what = f"{path!r:.256} of key {shown!r:.80}{source} is missing ({count})"
        raise ValueError(f"files: {what}; add the file, or skip such keys: missing='skip'")
    kept = [*compress(keys, whole)]
    rows = np.array([[*map(column.__getitem__, kept)] for column in columns]).T.ravel().tolist()
    return listed.catalog(rows, len(templates), () if labels is None else labels[whole])
