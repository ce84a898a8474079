"""Common parts of records of Caffe and Caffe2: messages, parsed one by one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import RecordError
from ...contract.views import Contents, Views
from ..wire import MalformedError

UINT8 = np.dtype(np.uint8)
_T = TypeVar("_T")


class Image(NamedTuple):
    """The place of an image in its record, in bytes, and its shape; (size,) if encoded."""

    start: int
    size: int
    shape: tuple[int, ...]


def parsed(
    catalog: Catalog, delivered: IntArray, views: Views, parse: Callable[[memoryview], _T]
) -> list[_T]:
    """Call `parse` with each record, and return the results.

    Raises:
        RecordError: `parse` raises a ValueError, which has the remedy, a MalformedError, or, for a
            record that ends within a field, an IndexError.
    """
    found: list[_T] = []
    for record in views.slices():
        try:
            found.append(parse(record))
        except (IndexError, ValueError) as error:
            sample = int(delivered[len(found)])
            what = "it ends within a field" if isinstance(error, IndexError) else str(error)
            if isinstance(error, (IndexError, MalformedError)):
                what = f"not a record of Caffe: {what}; write it again, or use readers.lmdb"
            raise RecordError(catalog.path(sample), f"{catalog.where(sample)}: {what}") from None
    return found


def images(views: Views, places: Sequence[Image]) -> Contents:
    """Return the images of n records: parts of the buffer, or copies if small and equal."""
    starts, sizes, shapes = zip(*places, strict=True)
    contents = Views(views.buffer, views.offsets + np.array(starts), np.array(sizes)).contents()
    shape = shapes[0]
    if len(shape) == 1:
        return contents
    if isinstance(contents, np.ndarray) and len({*shapes}) == 1:
        return contents.reshape(len(shapes), *shape)
    return [_shaped(item, shape) for item, shape in zip(contents, shapes, strict=True)]


def _shaped(item: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(item, memoryview) and item.nbytes:
        return item.cast("B", shape)  # costs a fifth of an array
    return np.asarray(item).reshape(shape)
