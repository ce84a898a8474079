"""Samples of manifests: whole files, and segments of sound.

A segment of a WAV is a range of its bytes, after a header of its own. Other sound is decoded from
the start of its file, and the segment is cut out afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import RecordError
from ...contract.format import Format, Output
from ...contract.ranges import Ranges
from ...contract.views import Contents, Views
from ...samples.locations import file_names
from ..files import Files, noting_states, sizes
from .lines import Kind, Manifest
from .sound import PAGE, Sound, sound_of, untagged

_COLUMNS = {str: Output(), int: Output(np.dtype(np.int64)), float: Output(np.dtype(np.float64))}
_FLAG, _RATE = Output(np.dtype(np.bool_), 0), Output(np.dtype(np.float32), 0)
_LONG = 1e9  # seconds; more than any sound has
_LONGEST = (1 << 32) - PAGE  # bytes of frames in a WAV
_UNKNOWN = (
    "segments and return_rate need a WAV with PCM, float, A-law or mu-law, and this is another "
    "file; convert it, use readers.nemo_asr for sound, or give segments=False and no return_rate "
    "for other files"
)


class Segments(Format):
    """The data of samples, and instructions for decoded sound.

    Outputs are the data; bool (): whether to cut a segment out of the decoded sound; its offset and
    duration in seconds, float64 (2,), with duration 1e9 if there is none; the rate in Hz, float32
    (), or 0 if unknown; the number of the sample in its manifest, int64 (1,); and columns of
    manifests.
    """

    labels = False

    def __init__(
        self, kinds: Sequence[Kind], operator: str, *, rates: bool, decoded: bool = False
    ) -> None:
        """Make a format.

        Args:
            kinds: the kinds of the columns.
            operator: the name of the reader.
            rates: whether rates must be known.
            decoded: whether all files are decoded sound, from which segments can be cut.
        """
        self.operator = operator
        self.schema = operator.title().replace("_", "")
        self.outputs = [Output(), _FLAG, _COLUMNS[float], _RATE, _COLUMNS[int]]
        self.outputs += [_COLUMNS[kind] for kind in kinds]
        self._rates, self._decoded = rates, decoded
        self.named = () if decoded else (0,)  # as in DALI

    def find(self, manifest: Manifest, files: Files) -> Catalog:
        """Make the catalog of the samples.

        Samples are whole files if all segments begin at the start of their files: `decode()` cuts
        off the rest. Otherwise the sizes of all files are read here, and the headers of files with
        a later segment.

        Raises:
            ValueError: a segment begins after the end of its file; the message has the line.
            OSError: a file cannot be read; names the file.
        """
        names, sounds = file_names("paths in manifests", manifest.names), dict[int, Sound]()
        if manifest.rows["offset"].any():
            found = noting_states(files.catalog(names))
            found = replace(found, ranges=_ranges(manifest, found, files, sounds))
        else:
            found = Catalog.from_names([names[file] for file in manifest.rows["file"].tolist()], ())
        found.sidecar[self] = replace(manifest, names=[]), sounds  # the catalog has the names
        return found.knowing(manifest.checksum(found.checksum()))

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the outputs; raise RecordError for a file that cannot be cut or lacks a rate."""
        manifest: Manifest
        known: dict[int, Sound]
        manifest, known = catalog.sidecar[self]
        rows = manifest.rows[delivered]
        data: Contents = views.contents()
        layout, later = np.zeros((4, len(rows)), np.int64), np.zeros(len(rows), np.bool_)
        wanted = _is_part(rows) | self._rates
        if self._decoded or wanted.any():

            def refused(slot: int, what: str) -> RecordError:
                sample = int(delivered[slot])
                return RecordError(catalog.path(sample), f"{manifest.where(sample)}: {what}")

            items, sounds = list(views.slices()), dict[int, Sound]()
            columns = zip(items, rows["file"].tolist(), wanted.tolist(), strict=True)
            for slot, (item, file, is_wanted) in enumerate(columns):
                if file in known:  # cut by the catalog
                    sounds[slot], layout[0, slot] = known[file], known[file].rate
                    continue
                items[slot] = whole = untagged(item) if self._decoded else item
                if is_wanted:
                    if sound := sound_of(whole, len(whole)):
                        sounds[slot], layout[:, slot] = sound, sound[:4]
                    elif not self._decoded:
                        raise refused(slot, _UNKNOWN)
            starts, nbytes = _places(rows, layout, views.sizes, refused)
            # A segment of the whole file has a header.
            is_cut = _is_part(rows) & ((layout[2] == 0) | (nbytes < layout[1] * layout[2]))
            cut = [slot for slot in sounds if is_cut[slot]]
            _add_headers(items, sounds, cut, starts, nbytes)
            data, later = items, wanted & (layout[0] == 0)
        spans = np.stack([rows["offset"], rows["duration"]], 1)
        spans = np.minimum(np.where(spans < 0, np.inf, spans), _LONG)
        rates = layout[0].astype(np.float32)
        numbers = rows["number"].copy()[:, None]
        return [data, later, spans, rates, numbers, *manifest.values(delivered)]


def _is_part(rows: NDArray[np.void]) -> NDArray[np.bool_]:
    """Return bool[n]: true for samples that are segments, not whole files."""
    part: NDArray[np.bool_] = (rows["offset"] > 0) | (rows["duration"] >= 0)
    return part


def _places(
    rows: NDArray[np.void],
    layout: IntArray,
    nbytes: IntArray,
    refused: Callable[[int, str], Exception],
) -> tuple[IntArray, IntArray]:
    """Return the starts and sizes of segments in their files, in bytes; others are whole files.

    Args:
        rows: n rows of a manifest.
        layout: int64[4, n]: rate, frames, align and start of `Sound`, or zeros.
        nbytes: int64[n], of the files.
        refused: makes an error from the number of a row and a description.
    """
    rate, total, align, start = layout
    first, frames = (  # fractions of frames are cut off, as in DALI
        (np.clip(rows[name], -1, _LONG) * rate).astype(np.int64) for name in ("offset", "duration")
    )
    frames = np.minimum(np.where(rows["duration"] < 0, total, frames), total - first)
    is_cut = _is_part(rows) & (align > 0)
    for row in np.flatnonzero(is_cut & (first > total))[:1].tolist():
        end = f"{total[row]:,} frames at {rate[row]:,} Hz"
        raise refused(row, f"the segment begins at frame {first[row]:,}, but the file has {end}")
    starts, found = np.where(is_cut, [start + first * align, frames * align], [0 * align, nbytes])
    for row in np.flatnonzero(is_cut & (found > _LONGEST))[:1].tolist():
        what = f"a WAV of {found[row]:,} bytes is too long"
        raise refused(row, f"{what}; cut it into shorter segments")
    return starts, found


def _add_headers(
    data: list[Any], sounds: dict[int, Sound], cut: list[int], starts: IntArray, sizes: IntArray
) -> None:
    """Replace some items by WAVs of their parts, in new memory."""
    headers = [sounds[slot].header(int(sizes[slot])) for slot in cut]
    memory = np.empty(sum(map(len, headers)) + int(sizes[cut].sum()), np.uint8)
    parts, at = zip(cut, headers, starts[cut].tolist(), sizes[cut].tolist(), strict=True), 0
    for slot, header, start, size in parts:
        middle, end = at + len(header), at + len(header) + size
        memory.data[at:middle] = header
        memory[middle:end] = np.asarray(data[slot])[start : start + size]  # without the GIL
        data[slot], at = memory.data[at:end], end


def _ranges(manifest: Manifest, found: Catalog, files: Files, sounds: dict[int, Sound]) -> Ranges:
    """Find the ranges of samples in `found`; add the headers of cut files to `sounds`."""
    rows, nbytes = manifest.rows, sizes(found)
    of = np.ascontiguousarray(rows["file"])
    begun = np.unique(of[rows["offset"] > 0]).tolist()
    heads = files.parts(found, [(file, 0, PAGE) for file in begun])
    layout = np.zeros((4, len(nbytes)), np.int64)
    for file, head in zip(begun, heads, strict=True):

        def more(at: int, file: int = file) -> bytes:
            return next(iter(files.parts(found, [(file, at, PAGE)])))

        if sound := sound_of(head, int(nbytes[file]), more):
            sounds[file], layout[:, file] = sound, sound[:4]

    def refused(sample: int, what: str) -> ValueError:
        path = os.fsdecode(found.file_path(int(of[sample])))
        return ValueError(f"{manifest.where(sample)}: {path!r}: {what}")

    return Ranges.of_columns(of, *_places(rows, layout[:, of], nbytes[of], refused))
