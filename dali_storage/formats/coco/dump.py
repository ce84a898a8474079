"""The files of DALI's `save_preprocessed_annotations`; little endian.

Most begin with the number of entries, uint32; then come the entries. An empty file is not written.
The layout is that of DALI 2.4, loader/coco_loader.cc.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from .annotations import Annotations
from .masks import Masks
from .options import CocoOptions
from .ragged import Ragged, starts_of

_NAMES = "filenames.dat"
FILES = (
    *(_NAMES, "counts.dat", "offsets.dat", "boxes.dat", "labels.dat", "original_ids.dat"),
    *("polygons_count.dat", "polygon_offset.dat", "polygon_data.dat"),
    *("vertices_count.dat", "vertices_offset.dat", "vertices.dat"),
    *("heights.dat", "widths.dat", "mask_count.dat", "masks_offset.dat"),
    *("masks_rles.dat", "masks_rles_idx.dat"),
)
"""All files of a dump; some may be missing."""

_FAR = 1_000_000
_LONGEST = 10 * _FAR
_LARGEST = 2**30
Rle: TypeAlias = tuple[int, int, NDArray[np.uint32]]
"""Height, width, and the lengths of runs."""
_RLE = struct.Struct("<QQQ")  # height, width, number of runs


def load(folder: str) -> dict[str, bytes]:
    """Read each existing file; raise OSError if the names cannot be read."""
    there = {*os.listdir(folder), _NAMES}
    return {name: Path(folder, name).read_bytes() for name in FILES if name in there}


def content_of(columns: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the content of each file, from its entries: arrays, or a list of RLEs."""
    content = {}
    for name, entries in columns.items():
        parts: list[Any] = [len(entries).to_bytes(4, "little")]
        if isinstance(entries, list):
            for height, width, runs in entries:
                parts += [_RLE.pack(height, width, len(runs)), runs]
        else:
            parts.append(np.ascontiguousarray(entries).data)
        if len(entries):
            content[name] = b"".join(parts)
    return content


def read(
    about: str, content: Mapping[str, bytes], options: CocoOptions
) -> tuple[list[bytes], Annotations]:
    """Return the names of the images, and the requested annotations, as views of the content.

    Raises:
        ValueError: a file is missing or damaged, or does not match another one; names the file,
            after `about`.
    """
    *names, rest = content[_NAMES].split(b"\n")
    dump = _Dump(about, content, names)
    if rest or not names or not all(names):
        dump.fail(f"{_NAMES} is truncated, or has an empty line")
    starts = dump.starts("offsets.dat", "counts.dat", "<i4")
    count = int(starts[-1])
    boxes = dump.column("boxes.dat", "<f4", 4 * count).reshape(-1, 4)
    objects = Ragged(starts, boxes, dump.column("labels.dat", "<i4", count))
    found = Annotations(objects)
    if options.image_ids:
        found = replace(found, ids=dump.column("original_ids.dat", "<i4", len(names)))
    if options.polygon_masks or options.pixelwise_masks:
        polygons = dump.ragged("polygon_offset.dat", "polygons_count.dat", "polygon_data.dat", 3)
        vertices = dump.ragged("vertices_offset.dat", "vertices_count.dat", "vertices.dat", 2)
        dump.check(polygons, objects, vertices)
        if options.pixelwise_masks:
            found = replace(found, masks=dump.masks(objects, polygons, vertices, options.ratio))
        else:
            found = replace(found, polygons=polygons, vertices=vertices)
    return names, found


class _Dump:
    """A directory with the dump of images of these names."""

    def __init__(self, about: str, content: Mapping[str, bytes], names: list[bytes]) -> None:
        self._about, self._content = about, content
        self._names, self._count = names, len(names)

    def column(self, name: str, dtype: str, count: int, width: int = 1) -> NDArray[Any]:
        """Return the entries of a file: exactly `count`, of `width` values each."""
        if not count and name not in self._content:
            content = bytes(4)
        elif (content := self._content.get(name, b"")) == b"":
            self.fail(f"{name} is missing, and should have {count:,} entries")
        if (found := int.from_bytes(content[:4], "little")) != count:
            self.fail(f"{name} has {found:,} entries, but should have {count:,}")
        wanted = 4 + count * width * np.dtype(dtype).itemsize
        if len(content) != wanted:
            self.fail(f"{name} has {len(content):,} bytes, but should have {wanted:,}")
        column = np.frombuffer(content, dtype, offset=4) if count else np.empty(0, dtype)
        return column.reshape((count, width) if width > 1 else count)

    def starts(self, offsets: str, counts: str, dtype: str) -> IntArray:
        """Return the starts of samples, which are consecutive in their columns: int64[n + 1]."""
        sizes = self.column(counts, dtype, self._count)
        ends = starts_of(sizes)
        if (sizes < 0).any() or (self.column(offsets, dtype, self._count) != ends[:-1]).any():
            self.fail(f"{offsets} does not match {counts}")
        return ends

    def ragged(self, offsets: str, counts: str, name: str, width: int) -> Ragged:
        """Return polygons or vertices."""
        starts = self.starts(offsets, counts, "<i8")
        dtype = "<f4" if width == 2 else "<i4"
        return Ragged(starts, self.column(name, dtype, int(starts[-1]), width))

    def check(self, polygons: Ragged, objects: Ragged, vertices: Ragged) -> None:
        """Refuse polygons with objects or vertices outside of their samples."""
        each = np.diff(polygons.starts)
        owner, first, last = polygons.columns[0].T
        bounds = [np.repeat(np.diff(it.starts), each) for it in (objects, vertices)]
        wrong = (owner < 0) | (owner >= bounds[0]) | (first < 0) | (first > last)
        if (wrong | (last > bounds[1])).any():
            self.fail("polygon_data.dat has objects or vertices outside of the sample")

    def masks(
        self, objects: Ragged, polygons: Ragged, vertices: Ragged, is_relative: bool
    ) -> Masks:
        """Return the maker of masks of pixels."""
        _, labels = objects.columns
        sizes = [self.column(name, "<i4", self._count) for name in ("heights.dat", "widths.dat")]
        starts = self.starts("masks_offset.dat", "mask_count.dat", "<i8")
        owners = self.column("masks_rles_idx.dat", "<i4", count := int(starts[-1]))
        shapes, bounds, runs = self._rles(count)
        samples = np.repeat(np.arange(self._count), np.diff(starts))
        shape = np.stack(sizes, 1)
        if (shape < 1).any():
            self.fail("heights.dat or widths.dat has a size below 1")
        for image in np.flatnonzero(shape.prod(1, dtype=np.int64) > _LARGEST)[:1].tolist():
            what = f"{os.fsdecode(self._names[image])!r} has the size {shape[image].tolist()}"
            self.fail(f"{what}, and masks have at most {_LARGEST:,} pixels", "correct the size")
        wrong = (owners < 0) | (owners >= np.diff(objects.starts)[samples])
        if wrong.any():
            self.fail("masks_rles_idx.dat has objects outside of the sample")
        pixels = np.diff(starts_of(runs)[bounds])
        wrong = (shapes != shape[samples]).any(1) | (pixels != shapes.prod(1))
        for rle in np.flatnonzero(wrong)[:1].tolist():
            name, size = os.fsdecode(self._names[samples[rle]]), shape[samples[rle]].tolist()
            what = f"the RLE of object {owners[rle]} of {name!r} has {pixels[rle]:,} pixels"
            what += f" and size {shapes[rle].tolist()}, but the image {size}"
            self.fail(what, "correct the segmentation")
        if (labels < 0).any():
            what = "a label is below 0, and such objects cannot have masks"
            self.fail(what, "leave out avoid_class_remapping, or change the id")
        self._check_outlines(polygons, vertices, int(shape.max()) if is_relative else 1)
        return Masks(
            sizes=shape,
            labels=Ragged(objects.starts, labels),
            polygons=polygons,
            vertices=vertices,
            rles=Ragged(starts, owners),
            bounds=bounds,
            runs=runs,
            is_relative=is_relative,
        )

    def _check_outlines(self, polygons: Ragged, vertices: Ragged, scale: int) -> None:
        """Refuse far and long outlines: drawing takes time and memory for each pixel of them."""
        (points,) = vertices.columns
        for row in np.flatnonzero(~(np.abs(points) * scale <= _FAR).all(1))[:1]:
            name = os.fsdecode(self._names[np.searchsorted(vertices.starts, row, "right") - 1])
            what = f"has the vertex {points[row].tolist()}, farther away than {_FAR:,} pixels"
            self.fail(f"a polygon of {name!r} {what}", "correct the segmentation")
        steps = np.abs(np.diff(points, axis=0, prepend=points[:1])).max(1, initial=0)
        along = np.append(0, np.cumsum(steps, dtype=np.float64)) * scale
        samples = np.repeat(np.arange(self._count), np.diff(polygons.starts))
        first, last = (polygons.columns[0][:, 1:] + vertices.starts[samples][:, None]).T
        lengths = along[last] - along[np.minimum(first + 1, last)]
        for row in np.flatnonzero(lengths > _LONGEST)[:1]:
            name = os.fsdecode(self._names[samples[row]])
            what = f"a polygon of {name!r} is {int(lengths[row]):,} pixels long, above {_LONGEST:,}"
            self.fail(what, "correct the segmentation")

    def _rles(self, count: int) -> tuple[IntArray, IntArray, NDArray[np.uint32]]:
        """Return height and width of each RLE (int64[k, 2]), its bounds in the runs, the runs."""
        name = "masks_rles.dat"
        content = self._content.get(name, bytes(4))
        at, shapes, runs = 4, [], []
        try:
            for _ in range(found := int.from_bytes(content[:4], "little")):
                height, width, size = _RLE.unpack_from(content, at)
                runs.append(np.frombuffer(content, "<u4", size, at + _RLE.size))
                shapes.append((height, width))
                at += _RLE.size + 4 * size
            found_shapes = np.array(shapes, np.int64).reshape(-1, 2)
        except (struct.error, OverflowError, ValueError):
            self.fail(f"{name} has {len(content):,} bytes, but should have more")
        if found != count or at != max(len(content), 4):
            self.fail(f"{name} has {found:,} entries in {at:,} bytes, but should have {count:,}")
        bounds = starts_of(np.array([len(each) for each in runs], np.int64))
        joined = np.concatenate([np.empty(0, np.uint32), *runs])
        return found_shapes, bounds, joined

    def fail(self, what: str, remedy: str = "make the directory again") -> NoReturn:
        """Raise ValueError."""
        raise ValueError(f"{self._about}: {what}; {remedy}")
