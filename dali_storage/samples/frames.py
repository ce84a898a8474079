"""The sequences of frames of `fn.readers.sequence`.

The rules follow DALI's loader/sequence_loader.cc and filesystem.cc, and tests compare both.
"""

from __future__ import annotations

import os
from itertools import groupby, islice

import numpy as np

from ..contract.catalog import Catalog, join_path
from ..contract.errors import named
from ..contract.objects import scheme
from ..contract.remote import Remote
from .discovery import IMAGE_FILTERS
from .walk import FoundFiles, is_directory

_EXTENSIONS = tuple(each.encode().removeprefix(b"*") for each in IMAGE_FILTERS)
_SHOWN = 5  # streams in an error


def find(root: bytes, length: int, step: int, stride: int, remote: Remote | None) -> Catalog:
    """Find sequences of `length` frames, with a piece for each frame.

    A stream is a directory or a link to one; its frames are the entries of any kind with the
    extension of an image, in any case of letters. Names with a leading dot do not count. All frames
    are sorted by `stream/frame`, as bytes. In each stream, a sequence begins at every `step`-th
    frame and uses every `stride`-th frame from there, as long as there are enough.

    Raises:
        OSError: a directory cannot be read, or a request to a store fails; names the path or URL.
        ValueError: there is no sequence; or objects cannot be listed.
    """
    listed = FoundFiles(root, remote)
    if scheme(root):
        listed.objects(root, list)
    else:
        listed.names = _entries(root)
    rows = {name: row for row, name in enumerate(listed.names)}
    streams = groupby(sorted(filter(_is_frame, rows)), lambda name: name.partition(b"/")[0])
    chosen, counts = list[int](), dict[str, int]()
    for stream, names in streams:
        frames = np.array([rows[name] for name in names])
        starts = np.arange(0, frames.size - (length - 1) * stride, step)
        chosen += frames[starts[:, None] + np.arange(length) * stride].ravel().tolist()
        counts[os.fsdecode(stream)] = frames.size
    if not chosen:
        some = ", ".join(f"{name!r} has {count}" for name, count in islice(counts.items(), _SHOWN))
        what = f"no directory in {os.fsdecode(root)!r} has {(length - 1) * stride + 1:,} frames"
        raise ValueError(
            f"{what}, needed for sequence_length={length}, stride={stride} ({some or 'no images'})"
        )
    return listed.catalog(chosen, length)


def _entries(root: bytes) -> list[bytes]:
    """List the entries of the directories in a directory, as `directory/name`."""
    with named(), os.scandir(root) as entries:
        streams = [each.name for each in entries if is_directory(each)]
        names = [(each, os.listdir(join_path(root, each))) for each in streams if each[:1] != b"."]
    return [stream + b"/" + name for stream, inner in names for name in inner]


def _is_frame(name: bytes) -> bool:
    stream, _, frame = name.partition(b"/")
    is_hidden = stream.startswith(b".") or frame.startswith(b".")
    return bool(frame) and not is_hidden and frame.lower().endswith(_EXTENSIONS)
