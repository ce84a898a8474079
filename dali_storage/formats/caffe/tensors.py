"""Caffe2's records: the `TensorProtos` of caffe2.proto [1], a tensor for each output.

A TensorProtos has tensors, `repeated TensorProto protos = 1`, and a TensorProto:

    dims 1 (int64), data_type 2 (by default FLOAT), float_data 3, int32_data 4, byte_data 5,
    string_data 6, double_data 9, int64_data 10

Numbers are repeated, packed or not, and strings are repeated.

[1] https://github.com/pytorch/pytorch/blob/v2.0.0/caffe2/proto/caffe2.proto
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.format import Format, Output
from ...contract.views import Contents, Views
from .. import wire
from ..kinds import OneKind
from ..wire import NESTED, fields
from .records import UINT8, Image, images, parsed

FLOAT, INT32, BYTE, STRING, INT64 = 1, 2, 3, 4, 10
_NAMES = {FLOAT: "FLOAT", INT32: "INT32", BYTE: "BYTE", STRING: "STRING", INT64: "INT64"}
_KINDS = {*range(11), 12, 13}
_DTYPES: dict[int, np.dtype[Any]] = {
    FLOAT: np.dtype(np.float32),
    INT32: np.dtype(np.int32),
    INT64: np.dtype(np.int64),
}
_DATA = {FLOAT: (26, 29), INT32: (34, 32), INT64: (82, 80)}  # tags: packed, one by one
_PROTO, _TYPE, _BYTES, _STRING, _DIMS = 10, 16, (42,), (50,), (10, 8)
_VARINTS, _WORDS = {10, 34, 82}, {26: 4, 74: 8}  # of packed numbers; and bytes of each


class _Tensor(NamedTuple):
    """A TensorProto in a record: its type, and the places of its fields' contents."""

    b: memoryview
    kind: int
    fields: list[tuple[int, int, int]]

    def places(self, tags: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return the start and stop of the contents of all fields with one of these tags."""
        return [(start, stop) for tag, start, stop in self.fields if tag in tags]


class TensorProtos(Format):
    """The tensors of a record, in their order: an image, a label, more, a bounding box."""

    operator = "caffe2"
    schema = "Caffe2"
    labels = False

    def __init__(self, image: bool, label: bool, single: bool, more: int, box: bool) -> None:
        """Set the expected tensors, `more` additional ones; `single`: a label is one number."""
        numbers = partial(_numbers, kinds=[INT32, FLOAT])
        every: list[tuple[str, Callable[[_Tensor], Any], Output]] = [
            *[("image", _image, Output(UINT8, None))] * image,
            *[("label", partial(numbers, count=1 if single else None), Output(None))] * label,
        ]
        for number in range(1, more + 1):
            numbers = partial(_numbers, kinds=[INT32, FLOAT, INT64])
            every.append((f"additional input {number}", numbers, Output(None)))
        box_output = Output(_DTYPES[INT32])
        every += [("bounding box", partial(_numbers, kinds=[INT32], count=4), box_output)] * box
        self._has_image, self.named = image, [0] * image
        self._parsers = {name: parse for name, parse, _ in every}
        self.outputs = [output for _, _, output in every]
        self._kinds = [OneKind(f"the {name}") for name in self._parsers]

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the tensors; raise RecordError for a record with other tensors."""
        columns = [*zip(*parsed(catalog, delivered, views, self.parse), strict=True)]
        outputs: list[Contents] = []
        for number, (column, kind) in enumerate(zip(columns, self._kinds, strict=True)):
            is_image = self._has_image and number == 0
            kinds = [(UINT8, len(it.shape)) if is_image else (_DTYPES[it[0]], 1) for it in column]
            kind.require(catalog, delivered.tolist(), kinds)
            outputs.append(images(views, column) if is_image else _arrays(column))
        return outputs

    def parse(self, record: memoryview) -> list[Any]:
        """Parse a record: an `Image` first, if expected, then types and numbers of the others.

        Raises:
            ValueError: the record has other tensors, or is not a TensorProtos.
            IndexError: the record ends within a field.
        """
        every = fields(record, 0, len(record), NESTED)
        tensors = [_tensor(record, start, stop) for tag, start, stop in every if tag == _PROTO]
        if len(tensors) != len(self._parsers):
            names = [*self._parsers]
            names[2:-2] = ["..."] if names[4:] else names[2:-2]
            what = f"it must have {len(self._parsers)} of them, not {len(tensors)}"
            what = f"by the arguments, its tensors are {', '.join(names)}, and {what}"
            raise ValueError(f"{what}; change the arguments, or write the record again")
        found = []
        for (name, parse), tensor in zip(self._parsers.items(), tensors, strict=True):
            try:
                found.append(parse(tensor))
            except ValueError as error:
                remedy = "change the arguments, or write the record again"
                raise ValueError(f"its {name} {error}; {remedy}") from None
        return found


def _tensor(b: memoryview, start: int, stop: int) -> _Tensor:
    kind, found = FLOAT, fields(b, start, stop, NESTED - 1)
    for tag, first, last in found:
        if tag == _TYPE:
            given = wire.signed32(b, first)
            kind = given if given in _KINDS else kind
        elif tag in _VARINTS:
            wire.require_varints(b, first, last)
        elif tag in _WORDS:
            wire.require_words(first, last, _WORDS[tag])
    return _Tensor(b, kind, found)


def _image(tensor: _Tensor) -> Image:
    """Parse an encoded image, or bytes of height, width and, optionally, channels."""
    if tensor.kind == STRING:
        for start, stop in tensor.places(_STRING)[:1]:
            return Image(start, stop - start, (stop - start,))
        raise ValueError("has no string")
    if tensor.kind != BYTE:
        raise ValueError(f"is of type {_NAMES.get(tensor.kind, tensor.kind)}, not STRING or BYTE")
    sizes = []
    for at, stop in tensor.places(_DIMS):
        while at < stop:
            sizes.append(wire.signed32(tensor.b, at))
            _, at = wire.varint(tensor.b, at, 10)
    start, stop = (tensor.places(_BYTES) or [(0, 0)])[-1]  # the last one of repeated fields
    # As in DALI, a fourth dimension means that the third does not count.
    shape = (*sizes[:2], sizes[2] if len(sizes) == 3 else 1)
    if len(shape) < 3 or min(shape) < 0 or shape[0] * shape[1] * shape[2] != stop - start:
        what = f"the dimensions {sizes}" if len(sizes) < 9 else f"{len(sizes):,} dimensions"
        raise ValueError(f"has {what}, not height, width and channels of {stop - start:,} bytes")
    return Image(start, stop - start, shape)


def _numbers(tensor: _Tensor, kinds: Sequence[int], count: int | None = None) -> tuple[int, bytes]:
    """Return the type, one of `kinds`, and all numbers, packed; require `count` numbers if set."""
    if tensor.kind not in kinds:
        known = " or ".join(_NAMES[kind] for kind in kinds)
        raise ValueError(f"is of type {_NAMES.get(tensor.kind, tensor.kind)}, not {known}")
    data = b"".join([tensor.b[start:stop] for start, stop in tensor.places(_DATA[tensor.kind])])
    if count is not None:
        has = len(data) // 4 if tensor.kind == FLOAT else sum(byte < 128 for byte in data)
        if has != count:
            raise ValueError(f"has {has} numbers, not {count}")
    return tensor.kind, data


def _arrays(column: Sequence[tuple[int, bytes]]) -> Contents:
    """Return the numbers of n tensors of one type."""
    kind, _ = column[0]
    values, counts = wire.numbers([data for _, data in column], floats=kind == FLOAT)
    return wire.arrays(values.astype(_DTYPES[kind], copy=False), counts)
