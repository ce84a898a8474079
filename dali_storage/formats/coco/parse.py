"""Parses a JSON file of annotations into the files of a dump, in one pass.

The result is that of DALI 2.4, loader/coco_loader.cc: numbers are rounded to double as by its
parser, then to float32, in which all is computed.
"""

from __future__ import annotations

import os
import zlib
from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.errors import ContainerChangedError
from . import dump, origin
from .annotations import Annotations
from .check import check, rules
from .masks import decode
from .options import CocoOptions
from .origin import Source
from .ragged import Ragged, starts_of
from .scan import Entry, Scanner


def parse(
    source: Source, options: CocoOptions, target: str = ""
) -> tuple[list[bytes], Annotations]:
    """Parse a JSON file, and return the names and annotations of the images.

    The dump is saved to the directory `target`, if given.

    Raises:
        ValueError: the file has a wrong value, see `Found`.
        OSError: the file cannot be read, or changes meanwhile; or `target` cannot be written.
    """
    about = f"annotations_file {os.fsdecode(source.name)!r}"
    if target:
        origin.require_writable(target)  # before a minute of work
    state, content = source.state(), source.read()
    if source.state() != state:
        raise ContainerChangedError(source.name, "changed while it was read; try again")
    known = {**state, "checksum": zlib.crc32(content)}
    text = content.decode("latin-1")
    del content  # may be large, as the text
    found = Found(about, text, options)
    del text
    files = found.files()
    names, annotations = dump.read(about, files, options)
    if target:
        origin.save(target, files, options, known)
    return names, annotations


class Found:
    """The contents of a JSON file: columns of images and objects, in the order of the file."""

    def __init__(self, about: str, text: str, options: CocoOptions) -> None:
        """The text has a character for each byte (Latin-1).

        Raises:
            ValueError: the text is not JSON, is truncated, or has a value that DALI refuses or
                misreads; names the file (`about`), the entry, its id, the field and the value.
        """
        self._scanner, self._options = Scanner(about, text), options
        self._ids: dict[int, int] = {}  # of images: their numbers
        self._names: dict[bytes, int] = {}
        self._sizes = array("i")  # width, height
        self._labels: dict[int, int] = {}  # of categories, from 1 on
        self._objects = array("i")  # image, category
        self._boxes = array("f")
        self._polygons = array("i")  # of each object
        self._lengths = array("i")  # of each polygon, in vertices
        self._vertices = array("f")
        self._rles: dict[int, dump.Rle] = {}
        self._has_masks = options.polygon_masks or options.pixelwise_masks
        add = {
            "images": self._add_image,
            "categories": self._add_category,
            "annotations": self._add_object,
        }
        fields = rules(options)
        for entry in self._scanner.entries(fields):
            check(self._scanner, entry, fields[entry.kind])
            add[entry.kind](entry)

    def files(self) -> dict[str, bytes]:
        """Return the files of a dump.

        Raises:
            ValueError: there are no images, or not all images of the options, or `skip_empty`
                leaves none.
        """
        options, names, ids = self._options, [*self._names], np.fromiter(self._ids, np.int64)
        if not names:
            self._scanner.fail("it has no images", "use a file with images")
        chosen = self._chosen(ids)
        objects = self._by_image(ids)
        if options.skip_empty:
            chosen = chosen[np.diff(objects.starts)[chosen] > 0]
            if not chosen.size:
                raise ValueError(f"skip_empty=True leaves no image of {self._scanner.about}")
        sizes = np.asarray(self._sizes).reshape(-1, 2)[chosen]
        lines = b"".join(names[image] + b"\n" for image in chosen.tolist())
        columns = self._columns(objects.take(chosen), sizes)
        if options.image_ids:
            columns["original_ids.dat"] = ids[chosen].astype(np.int32)
        return {"filenames.dat": lines} | dump.content_of(columns)

    def _add_image(self, entry: Entry) -> None:
        value = entry.value
        if not value["file_name"].isascii():
            value = self._scanner.real(entry)
        name = value["file_name"].encode("utf-8", "surrogateescape")
        for field, key, numbers in (
            ("id", value["id"], self._ids),
            ("file_name", name, self._names),
        ):
            if (first := numbers.setdefault(key, entry.number)) != entry.number:
                what = f"{field} {value[field]!r} is also in images[{first}]"
                self._scanner.refuse(entry, what, "make them unique")
        self._sizes.extend((value.get("width", 0), value.get("height", 0)))

    def _add_category(self, entry: Entry) -> None:  # a repeated id keeps its first number
        self._labels.setdefault(entry.value["id"], entry.number + 1)

    def _add_object(self, entry: Entry) -> None:
        value = entry.value
        if value.get("iscrowd") and not self._options.include_iscrowd:
            return
        if self._has_masks:
            self._add_mask(value.get("segmentation"))
        self._objects.extend((value["image_id"], value["category_id"]))
        self._boxes.extend(value["bbox"])

    def _add_mask(self, given: Any) -> None:
        polygons = given if type(given) is list else []
        for polygon in polygons:
            self._lengths.append(len(polygon) // 2)
            self._vertices.extend(polygon)
        if type(given) is dict and self._options.pixelwise_masks:
            counts = given["counts"]
            runs = decode(counts.encode()) if type(counts) is str else np.array(counts, np.uint32)
            self._rles[len(self._polygons)] = (*given["size"], runs)
        self._polygons.append(len(polygons))

    def _chosen(self, ids: IntArray) -> IntArray:
        """Return the numbers of images in the order of samples."""
        if (images := self._options.images) is None:
            return np.argsort(ids)
        if unknown := [name for name in images if name not in self._names]:
            what = f"images has {os.fsdecode(unknown[0])!r}, which is not a file_name in the file"
            self._scanner.fail(what, "correct images, or leave out images")
        return np.array([self._names[name] for name in images])

    def _by_image(self, ids: IntArray) -> Ragged:
        """Return the numbers of the objects of each image."""
        owners, by_id = np.asarray(self._objects)[::2], np.argsort(ids)
        images = by_id[np.searchsorted(ids, owners, sorter=by_id) % ids.size]
        sizes = np.asarray(self._boxes).reshape(-1, 4)[:, 2:]
        least = np.asarray(array("f", [self._options.size_threshold]))
        kept = np.flatnonzero((ids[images] == owners) & (sizes >= least).all(1))
        count = np.bincount(images[kept], minlength=ids.size)
        return Ragged(starts_of(count), kept[np.argsort(images[kept], kind="stable")])

    def _columns(self, objects: Ragged, sizes: NDArray[np.int32]) -> dict[str, Any]:
        """Return the columns of the dump: the objects of each sample, and the sample's size."""
        (rows,), starts, count = objects.columns, objects.starts, np.diff(objects.starts)
        numbers = np.arange(rows.size) - np.repeat(starts[:-1], count)  # in the sample
        shapes = np.repeat(sizes, count, axis=0).astype(np.float32)
        boxes = np.asarray(self._boxes).reshape(-1, 4)[rows]
        if self._options.ltrb:
            with np.errstate(over="ignore", invalid="ignore"):  # as in DALI: infinity and NaN
                boxes[:, 2:] += boxes[:, :2]
        if self._options.ratio:
            boxes /= np.tile(shapes, 2)
        found = _counted("offsets.dat", "counts.dat", starts, np.int32)
        found |= {"labels.dat": self._labels_of(rows), "boxes.dat": boxes.ravel()}
        if self._has_masks:
            found |= self._polygon_columns(objects, numbers, shapes)
        if self._options.pixelwise_masks:
            having = np.flatnonzero(np.isin(rows, [*self._rles]))
            found["masks_rles.dat"] = [self._rles[row] for row in rows[having].tolist()]
            found["masks_rles_idx.dat"] = numbers[having].astype(np.int32)
            places = np.searchsorted(having, starts)
            found |= _counted("masks_offset.dat", "mask_count.dat", places)
            found["widths.dat"], found["heights.dat"] = sizes.T
        return found

    def _labels_of(self, rows: IntArray) -> NDArray[np.int32]:
        categories = np.asarray(self._objects)[1::2][rows]
        if self._options.avoid_class_remapping:
            return categories
        known, which = np.unique(categories, return_inverse=True)
        return np.array([self._labels.get(it, 0) for it in known.tolist()], np.int32)[which]

    def _polygon_columns(
        self, objects: Ragged, numbers: IntArray, shapes: NDArray[np.float32]
    ) -> dict[str, Any]:
        """Return the columns of polygons and vertices."""
        (rows,), lengths = objects.columns, np.asarray(self._lengths)
        every = starts_of(np.asarray(self._polygons))
        polygons = Ragged(every, lengths).take(rows)
        points = np.asarray(self._vertices).reshape(-1, 2)
        vertices = Ragged(starts_of(lengths)[every], points).take(rows)
        if self._options.ratio:
            vertices.columns[0][:] /= np.repeat(shapes, np.diff(vertices.starts), axis=0)
        first, start = polygons.starts[objects.starts], vertices.starts[objects.starts]
        owners = np.repeat(numbers, np.diff(polygons.starts))
        ends = starts_of(polygons.columns[0])
        base = np.repeat(start[:-1], np.diff(first))
        data = np.stack([owners, ends[:-1] - base, ends[1:] - base], 1)
        return {
            "polygon_data.dat": data.astype(np.int32),
            "vertices.dat": vertices.columns[0],
            **_counted("polygon_offset.dat", "polygons_count.dat", first),
            **_counted("vertices_offset.dat", "vertices_count.dat", start),
        }


def _counted(offsets: str, counts: str, starts: IntArray, dtype: Any = np.int64) -> dict[str, Any]:
    return {offsets: starts[:-1].astype(dtype), counts: np.diff(starts).astype(dtype)}
