"""Caffe's records: a `Datum` of caffe.proto [1], an image and a label.

    channels 1, height 2, width 3 (int32), data 4 (bytes), label 5 (int32), float_data 6 (float),
    encoded 7 (bool)

[1] https://github.com/BVLC/caffe/blob/master/src/caffe/proto/caffe.proto
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.format import Format, Output
from ...contract.views import Contents, Views
from ..kinds import OneKind
from ..wire import NESTED, fields, require_words, signed32, varint
from .records import UINT8, Image, images, parsed

_SIZES = {8: 0, 16: 1, 24: 2}  # tags: channels, height, width
_DATA, _LABEL, _FLOATS, _ENCODED = 34, 40, 50, 56
_UINT64 = (1 << 64) - 1


class _Found(NamedTuple):
    image: Image | None
    label: int | None


class Datum(Format):
    """The image and the label of a record, or one of them."""

    operator = "caffe"
    schema = "Caffe"
    labels = False

    def __init__(self, image: bool, label: bool) -> None:
        """`image`, `label`: whether the output is wanted and required."""
        self._image, self._label, self.named = image, label, [0] * image
        label_output = Output(np.dtype(np.int32))
        self.outputs = [Output(UINT8, None)] * image + [label_output] * label
        self._kind = OneKind("the image")

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return images, uint8, and labels, int32; raise RecordError for a record without them."""
        found = parsed(catalog, delivered, views, self.parse)
        outputs: list[Contents] = []
        if self._image:
            places = [it.image for it in found if it.image is not None]
            kinds = [(UINT8, len(it.shape)) for it in places]
            self._kind.require(catalog, delivered.tolist(), kinds)
            outputs.append(images(views, places))
        if self._label:
            outputs.append(np.array([[it.label] for it in found], np.int32))
        return outputs

    def parse(self, b: memoryview) -> _Found:
        """Parse the wanted fields of a Datum. The last one of repeated fields counts.

        Raises:
            ValueError: the record is not a Datum, lacks a wanted field, or a raw image does not
                have its size.
            IndexError: the record ends within a field.
        """
        data, label, encoded, sizes = None, None, True, [0, 0, 0]
        for tag, start, stop in fields(b, 0, len(b), NESTED):
            if tag == _DATA:
                data = start, stop - start
            elif tag == _LABEL:
                label = signed32(b, start)
            elif tag == _ENCODED:
                encoded = varint(b, start, 10)[0] & _UINT64 != 0
            elif tag in _SIZES:
                sizes[_SIZES[tag]] = signed32(b, start)
            elif tag == _FLOATS:
                require_words(start, stop, 4)
        if self._label and label is None:
            raise ValueError("its Datum has no label; leave labels out with label_available=False")
        if not self._image:
            return _Found(None, label)
        if data is None:
            raise ValueError("its Datum has no data; leave images out with image_available=False")
        return _Found(Image(*data, (data[1],) if encoded else _shape(data[1], *sizes)), label)


def _shape(nbytes: int, channels: int, height: int, width: int) -> tuple[int, int, int]:
    # As in DALI: Caffe means (channels, height, width), and the bytes are in that order.
    if min(height, width, channels) < 0 or height * width * channels != nbytes:
        what = f"its image is {height} x {width} x {channels} (height, width, channels)"
        raise ValueError(f"{what} but has {nbytes:,} bytes; write the record again")
    return height, width, channels
