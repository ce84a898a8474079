"""The annotations of images in columns, their catalog, and their outputs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.format import Format, Output
from ...contract.views import Contents, Views
from .masks import Masks
from .options import CocoOptions
from .ragged import Ragged


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The annotations of n images.

    Attributes:
        objects: boxes, float32[m, 4], and labels, int32[m].
        polygons: int32[p, 3]: the object in the sample, and the start and stop of the polygon in
            the vertices of the sample. None: not requested, also below.
        vertices: float32[v, 2].
        masks: make masks of pixels.
        ids: int32[n].
    """

    objects: Ragged
    polygons: Ragged | None = None
    vertices: Ragged | None = None
    masks: Masks | None = None
    ids: NDArray[np.int32] | None = None

    def in_coordinates(self) -> Annotations:
        """Return the same annotations, with starts and stops in coordinates, not in vertices."""
        assert self.polygons is not None
        (column,) = self.polygons.columns
        polygons = Ragged(self.polygons.starts, column * np.array([1, 2, 2], np.int32))
        return replace(self, polygons=polygons)


@dataclass(frozen=True, slots=True, eq=False)
class CocoCatalog(Catalog):
    """Images with annotations, in columns: 4 bytes a label, 16 a box, 12 a polygon, 8 a vertex."""

    annotations: Annotations = field(kw_only=True)

    @classmethod
    def of(cls, names: Sequence[bytes], root: bytes, annotations: Annotations) -> CocoCatalog:
        """Make the catalog of n images."""
        it = Catalog.from_names(names, (), root)
        return cls(it.root, it.names, it.offsets, it.labels, annotations=annotations)

    def checksum(self) -> int:
        """Return a CRC-32 of names, boxes and labels."""
        checksum = Catalog.checksum(self)
        objects = self.annotations.objects
        for column in (objects.starts, *objects.columns):
            checksum = zlib.crc32(np.ascontiguousarray(column).data, checksum)
        return checksum


class Coco(Format):
    """The bytes of an image, and its annotations."""

    operator, schema, labels = "coco", "COCO", False

    def __init__(self, options: CocoOptions) -> None:
        integers, floats = np.dtype(np.int32), np.dtype(np.float32)
        outputs = [Output(), Output(floats, 2), Output(integers, 1)]
        if options.polygon_masks:
            outputs += [Output(integers, 2), Output(floats, 2)]
        elif options.pixelwise_masks:
            outputs += [Output(integers, 3, "HWC")]
        self.outputs = outputs + ([Output(integers, 1)] if options.image_ids else [])

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return images, boxes, labels, then polygons and vertices, or masks, then ids."""
        assert isinstance(catalog, CocoCatalog)
        found = catalog.annotations
        outputs = [views.contents(), *found.objects.of(delivered)]
        for ragged in filter(None, (found.polygons, found.vertices)):
            outputs += ragged.of(delivered)
        if found.masks is not None:
            outputs.append([found.masks.of(sample) for sample in delivered.tolist()])
        if found.ids is not None:
            outputs.append(found.ids[delivered][:, None])
        return outputs
