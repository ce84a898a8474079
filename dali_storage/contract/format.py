"""What a format makes of the bytes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ._types import IntArray
from .catalog import Catalog
from .views import Contents, Views


class Output(NamedTuple):
    """What is known of an output before the first batch.

    Attributes:
        dtype: None if it is not known.
        ndim: of a sample; None if it is not known.
        layout: what the axes are, as DALI names them; "" if it has no names for them.
    """

    dtype: np.dtype[Any] | None = np.dtype(np.uint8)
    ndim: int | None = 1
    layout: str = ""


class Wanted(NamedTuple):
    """The parts of samples that make all outputs of a batch.

    Attributes:
        starts: int64[n], bytes into the sample.
        sizes: int64[n], bytes.
        decode: the outputs, made of n views of these parts only.
    """

    starts: IntArray
    sizes: IntArray
    decode: Callable[[Views], Sequence[Contents]]


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

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """The outputs of a batch, each with n samples. Called in a lane; must not block.

        Args:
            catalog: what the samples are from.
            delivered: int64[n], indices of delivered samples.
            views: their `catalog.pieces_of()`: n * pieces parts of one buffer. Outputs may be
                slices of it, which keep it alive.

        Raises:
            RecordError: the bytes of a sample are not of this format.
        """
        return (views.contents(),)

    def wanted(self, catalog: Catalog, delivered: IntArray) -> Wanted | None:
        """The parts of the pieces that are enough, or None if they are not known.

        They are read alone where that costs less. The arguments are those of `decode()`.
        """
        return None
