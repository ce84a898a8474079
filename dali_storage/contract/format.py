"""The bytes of a batch in its buffer, and what a format makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._types import Buffer, IntArray
from .catalog import Catalog

SMALL = 4096
"""Bytes; to copy so few costs less than a tensor of DALI's."""

Contents: TypeAlias = Sequence[Buffer] | NDArray[Any]
"""The samples of a batch: an item of memory or an array each, or the rows of one array.

Arrays are contiguous in C's order and in the byte order of the machine.
"""


class Output(NamedTuple):
    """What is known of an output before the first batch.

    Attributes:
        dtype: None if it is not known.
        ndim: of a sample; None if it is not known.
    """

    dtype: np.dtype[Any] | None = np.dtype(np.uint8)
    ndim: int | None = 1


class Format:
    """What DALI gets of a sample. This one: its bytes and, if the catalog has it, its label.

    Attributes:
        operator: of `dali_storage.readers`, for messages.
        schema: the class of the operator in DALI, from which names are generated.
        outputs: of a sample, without label and index.
        labels: whether the label in the catalog is an output, after the others.
    """

    operator: str = "file"
    schema: str = "File"
    outputs: Sequence[Output] = (Output(),)
    labels: bool = True

    def decode(
        self, catalog: Catalog, delivered: IntArray, contents: Contents
    ) -> Sequence[Contents]:
        """The outputs of a batch, each with n samples. Called in a lane; must not block.

        Args:
            catalog: what the samples are from.
            delivered: int64[n], indices of delivered samples.
            contents: the bytes of their `catalog.pieces_of()`: n * pieces items. Slices of one
                buffer, which they keep alive; outputs may be views of them.

        Raises:
            RecordError: the bytes of a sample are not of this format.
        """
        return (contents,)


def packed(items: Sequence[Any] | NDArray[Any], dtype: np.dtype[Any]) -> Contents:
    """The bytes of n items as arrays of 1 dimension: one for all if they are small and equal."""
    if isinstance(items, np.ndarray):
        return np.ascontiguousarray(items).view(dtype)
    size = len(items[0])
    if size <= SMALL and all(len(item) == size for item in items):
        shape = len(items), size // dtype.itemsize
        return np.ndarray(shape, dtype, bytearray().join(items))
    return items if dtype == np.uint8 else [np.frombuffer(item, dtype) for item in items]
