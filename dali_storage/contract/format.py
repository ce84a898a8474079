"""The conversion of the bytes of a batch into outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._types import IntArray
from .catalog import Catalog
from .views import Contents, Views


class Output(NamedTuple):
    """The properties of an output, known before the first batch.

    Attributes:
        dtype: None if unknown.
        ndim: the dimensions of a sample; None if unknown.
        layout: the axes, in DALI's notation; "" if DALI has no names for them.
        encoded: whether 1-D bytes may be a file, such as a JPEG, and not numbers.
    """

    dtype: np.dtype[Any] | None = np.dtype(np.uint8)
    ndim: int | None = 1
    layout: str = ""
    encoded: bool = True


class Wanted(NamedTuple):
    """The parts of samples that are enough for all outputs of a batch.

    Attributes:
        starts: int64[n], bytes into the sample.
        sizes: int64[n], bytes.
        decode: makes the outputs from n views of these parts only.
    """

    starts: IntArray
    sizes: IntArray
    decode: Callable[[Views], Sequence[Contents]]


class Format:
    """Base class of formats: makes the outputs of a sample from its bytes.

    This class itself returns the bytes and, if the catalog has one, the label.

    Attributes:
        operator: the name in `dali_storage.readers`, for messages.
        schema: the class of the operator in DALI, from which names are generated.
        outputs: the outputs of a sample, without label and index.
        labels: True if the label in the catalog is an output, after the others.
        named: the numbers of the outputs with DALI's source_info.
    """

    operator: str = "file"
    schema: str = "File"
    outputs: Sequence[Output] = (Output(),)
    labels: bool = True
    named: Sequence[int] = (0,)

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Make the outputs of a batch, each with n samples. Called in a lane; must not block.

        Args:
            catalog: the catalog of the samples.
            delivered: int64[n], indices of delivered samples.
            views: the n * pieces parts of one buffer, in the order of `catalog.pieces_of()`.
                Outputs may be slices of the buffer, which keep the buffer alive.

        Raises:
            RecordError: the bytes of a sample are not valid in this format.
        """
        return (views.contents(),)

    def wanted(self, catalog: Catalog, delivered: IntArray) -> Wanted | None:
        """Return the parts of the pieces that are enough, or None if unknown; see `decode()`.

        Only these parts are read where the read costs less.
        """
        return None
