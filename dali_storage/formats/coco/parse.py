"""Parses a JSON file of annotations into the files of a dump, in one pass.

The result is that of DALI 2.4, loader/coco_loader.cc: numbers are rounded to double as by its
parser, then to float32, in which all is computed.
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Sequence
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
from .ragged import joined, row_numbers
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
        os.scandir(target).close()  # refuses a missing directory before a minute of work
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
    """The contents of a JSON file."""

    def __init__(self, about: str, text: str, options: CocoOptions) -> None:
        """The text has a character for each byte (Latin-1).

        Raises:
            ValueError: the text is not JSON, is truncated, or has a value that DALI refuses or
                misreads; names the file (`about`), the entry, its id, the field and the value.
        """
        scanner, fields = Scanner(about, text), rules(options)
        self._about, self._options = about, options
        self._images, self._objects = _Images(scanner), _Objects(options)
        add = {
            "images": self._images.add,
            "categories": self._objects.add_category,
            "annotations": self._objects.add,
        }
        for entry in scanner.entries(fields):
            check(scanner, entry, fields[entry.kind])
            add[entry.kind](entry)

    def files(self) -> dict[str, bytes]:
        """Return the files of a dump.

        Raises:
            ValueError: there are no images, or not all images of the options, or `skip_empty`
                leaves none.
        """
        images, objects, options = self._images, self._objects, self._options
        chosen = images.chosen(options.images)
        with np.errstate(over="ignore", invalid="ignore"):  # as in DALI: infinity, NaN from it
            rows, owners = objects.kept(images.ids)
            count = np.bincount(owners, minlength=images.ids.size)
            if options.skip_empty and not (chosen := chosen[count[chosen] > 0]).size:
                raise ValueError(f"skip_empty=True leaves no image of {self._about}")
            starts, count = (np.cumsum(count) - count)[chosen], count[chosen]
            rows = rows[row_numbers(starts, count)]
            content = objects.files(rows, count, images.sizes[chosen])
        return images.files(chosen, options) | content


class _Images:
    """The images, with unique ids and names, in the order of the file."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._ids: dict[int, int] = {}  # their numbers
        self._names: dict[bytes, int] = {}
        self._sizes = array("i")

    @property
    def ids(self) -> IntArray:
        return np.fromiter(self._ids, np.int64)

    @property
    def sizes(self) -> NDArray[np.int32]:
        """Width and height, 0 if missing: int32[n, 2]."""
        return np.asarray(self._sizes).reshape(-1, 2)

    def add(self, entry: Entry) -> None:
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

    def chosen(self, images: Sequence[bytes] | None) -> IntArray:
        """Return the numbers of the images in the order of delivery."""
        if not self._names:
            self._scanner.fail("it has no images", "use a file with images")
        if images is None:
            return np.argsort(self.ids)
        if unknown := [name for name in images if name not in self._names]:
            what = f"images has {os.fsdecode(unknown[0])!r}, which is not a file_name in the file"
            self._scanner.fail(what, "correct images, or leave out images")
        return np.array([self._names[name] for name in images])

    def files(self, chosen: IntArray, options: CocoOptions) -> dict[str, bytes]:
        names = [*self._names]
        columns = dict[str, Any]()
        if options.image_ids:
            columns["original_ids.dat"] = self.ids[chosen].astype(np.int32)
        if options.pixelwise_masks:
            columns["widths.dat"], columns["heights.dat"] = self.sizes[chosen].T
        lines = b"".join(names[image] + b"\n" for image in chosen.tolist())
        return {"filenames.dat": lines} | dump.content_of(columns)


class _Objects:
    """The objects, in the order of the file."""

    def __init__(self, options: CocoOptions) -> None:
        self._options = options
        self._numbers: dict[int, int] = {}  # of categories, from 1 on
        self._images, self._categories, self._boxes = array("i"), array("i"), array("f")
        self._polygons = array("i")  # of each object
        self._vertices = array("i")  # of each polygon
        self._coordinates = array("f")
        self._rles: dict[int, dump.Rle] = {}

    def add_category(self, entry: Entry) -> None:  # a repeated id keeps its first number
        self._numbers.setdefault(entry.value["id"], entry.number + 1)

    def add(self, entry: Entry) -> None:
        value = entry.value
        if value.get("iscrowd") and not self._options.include_iscrowd:
            return
        if self._options.polygon_masks or self._options.pixelwise_masks:
            self._add_mask(value.get("segmentation"))
        self._images.append(value["image_id"])
        self._categories.append(value["category_id"])
        self._boxes.extend(value["bbox"])

    def _add_mask(self, given: Any) -> None:
        polygons = given if type(given) is list else []
        self._polygons.append(len(polygons))
        for polygon in polygons:
            self._vertices.append(len(polygon) // 2)
            self._coordinates.extend(polygon)
        if type(given) is dict and self._options.pixelwise_masks:
            counts = given["counts"]
            runs = decode(counts.encode()) if type(counts) is str else np.array(counts, np.uint32)
            self._rles[len(self._images)] = (*given["size"], runs)

    def kept(self, ids: IntArray) -> tuple[IntArray, IntArray]:
        """Return the rows of the objects of these images, by image; and the images."""
        owners, by_id = np.asarray(self._images), np.argsort(ids)
        images = by_id[np.searchsorted(ids, owners, sorter=by_id) % ids.size]
        least = np.array(self._options.size_threshold).astype(np.float32)
        sizes = np.asarray(self._boxes).reshape(-1, 4)[:, 2:]
        rows = np.flatnonzero((ids[images] == owners) & (sizes >= least).all(1))
        rows = rows[np.argsort(images[rows], kind="stable")]
        return rows, images[rows]

    def files(self, rows: IntArray, count: IntArray, sizes: NDArray[np.int32]) -> dict[str, bytes]:
        """Return the files of objects: `count` rows for each sample, which has this size."""
        starts = np.cumsum(count) - count
        shapes = np.repeat(sizes, count, axis=0).astype(np.float32)
        boxes = np.asarray(self._boxes).reshape(-1, 4)[rows]
        if self._options.ltrb:
            boxes[:, 2:] += boxes[:, :2]
        if self._options.ratio:
            boxes /= np.tile(shapes, 2)
        found = {"counts.dat": count.astype(np.int32), "offsets.dat": starts.astype(np.int32)}
        found |= {"labels.dat": self._labels(rows), "boxes.dat": boxes.ravel()}
        numbers = np.arange(rows.size) - np.repeat(starts, count)  # in the sample
        bounds = np.append(starts, rows.size)
        if self._options.polygon_masks or self._options.pixelwise_masks:
            found |= self._polygon_columns(rows, numbers, bounds, shapes)
        if not self._options.pixelwise_masks:
            return dump.content_of(found)
        owners = np.array([n for n, row in enumerate(rows.tolist()) if row in self._rles], int)
        found |= {"masks_rles_idx.dat": numbers[owners].astype(np.int32)}
        found |= _counted("masks_offset.dat", "mask_count.dat", np.searchsorted(owners, bounds))
        rles = [self._rles[row] for row in rows[owners].tolist()]
        return dump.content_of(found) | dump.content_of_rles(rles)

    def _labels(self, rows: IntArray) -> NDArray[np.int32]:
        categories = np.asarray(self._categories)[rows]
        if self._options.avoid_class_remapping:
            return categories
        known, which = np.unique(categories, return_inverse=True)
        return np.array([self._numbers.get(it, 0) for it in known.tolist()], np.int32)[which]

    def _polygon_columns(
        self, rows: IntArray, numbers: IntArray, bounds: IntArray, shapes: NDArray[np.float32]
    ) -> dict[str, Any]:
        """Return polygons and vertices; `bounds` are the first and the last + 1 of each sample."""
        every = _ends(np.asarray(self._polygons))  # polygons before each object
        first, last = every[rows], every[rows + 1]
        polygons = row_numbers(first, last - first)
        ends = _ends(np.asarray(self._vertices)[polygons])  # vertices before each of them
        of_samples = _ends(last - first)[bounds]
        vertices_of_samples = ends[of_samples]
        base = np.repeat(vertices_of_samples[:-1], np.diff(of_samples))
        data = np.repeat(numbers, last - first), ends[:-1] - base, ends[1:] - base
        before = _ends(np.asarray(self._vertices))
        points = np.asarray(self._coordinates).reshape(-1, 2)
        memory = joined(points, before[first], before[last])
        vertices = np.frombuffer(memory, np.float32).reshape(-1, 2)
        if self._options.ratio:
            vertices /= np.repeat(shapes, before[last] - before[first], axis=0)
        return {
            "polygon_data.dat": np.stack(data, 1).astype(np.int32),
            "vertices.dat": vertices,
            **_counted("polygon_offset.dat", "polygons_count.dat", of_samples),
            **_counted("vertices_offset.dat", "vertices_count.dat", vertices_of_samples),
        }


def _ends(count: IntArray) -> IntArray:
    """Return the number of rows before each entry, and of all."""
    return np.append(0, np.cumsum(count, dtype=np.int64))


def _counted(offsets: str, counts: str, bounds: IntArray) -> dict[str, Any]:
    return {offsets: bounds[:-1].astype(np.int64), counts: np.diff(bounds).astype(np.int64)}
