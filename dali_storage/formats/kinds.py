"""The kind of an output: one type and number of dimensions for all samples.

DALI accepts only arrays of one kind from a Python source, in all batches.
"""

import os
import threading
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..contract.catalog import Catalog
from ..contract.errors import RecordError

ArrayKind: TypeAlias = tuple[np.dtype[Any], int]
"""A type and a number of dimensions."""


class OneKind:
    """The kind of the first sample, required of all others. Lanes may call at the same time."""

    def __init__(self, what: str) -> None:
        """`what`: the output, in messages."""
        self._what = what
        self._first: tuple[ArrayKind, str] | None = None  # and where it is
        self._lock = threading.Lock()

    def require(
        self, catalog: Catalog, delivered: Sequence[int], kinds: Sequence[ArrayKind]
    ) -> None:
        """Refuse a batch with a sample of another kind; samples have one piece.

        Raises:
            RecordError: names the wrong sample and the first one.
        """
        with self._lock:
            known, first = self._first or (kinds[0], _place(catalog, delivered[0]))
            for sample, kind in zip(delivered, kinds, strict=True):
                if kind != known:
                    where = f"{catalog.where(sample)}: " if catalog.ranges is not None else ""
                    what = f"{where}{self._what} is {named(*kind)}, but the first ({first}) is"
                    remedy = "read other kinds with another reader"
                    raise RecordError(
                        catalog.path(sample),
                        f"{what} {named(*known)}; all must have the same type and number of "
                        f"dimensions: {remedy}",
                    )
            self._first = known, first  # not before: a wrong file may be corrected


def named(dtype: np.dtype[Any], ndim: int) -> str:
    """Return a kind as text for messages."""
    return f"of {dtype} and {ndim} dimension{'s' * (ndim != 1)}"


def _place(catalog: Catalog, sample: int) -> str:
    return catalog.where(sample) or repr(os.fsdecode(catalog.path(sample)))
