"""The samples for which an operator of a pipeline fails: DALI does not name them."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...contract._types import IntArray
from ...contract.errors import RecordError
from ...dali.queries import failure
from ...reading.source import BatchStream

_NAMED = 256  # most files listed in an error


def samples_of(reader: BatchStream, position: int) -> IntArray:
    """Return the samples of a batch, with replaced ones: int64[batch size], catalog indices."""
    return reader.substitute.chosen(reader.samples(position))


def describe(readers: Iterable[BatchStream], position: int) -> str:
    """Return a note that names the files of a batch."""
    names, places = [], []
    for each in readers:
        catalog = each.open().catalog
        rows = catalog.pieces_of(samples_of(each, position)).tolist()
        for row in dict.fromkeys(rows):  # padding repeats the last one
            names.append(os.path.abspath(os.fsdecode(catalog.path(row))))
            places.append(f" ({where})" if (where := catalog.where(row)) else "")
    folder = os.path.commonpath([os.path.dirname(name) for name in names])
    listed = list(zip(names, places, strict=True))[:_NAMED]
    shown = [os.path.relpath(name, folder) + place for name, place in listed]
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"the files of the batch, in {folder}: {', '.join(shown)}{more}"


def find(pipeline: Any, reader: BatchStream, samples: IntArray) -> dict[int, Exception]:
    """Return which of `samples` fail alone, and their errors.

    The search runs the pipeline itself, which has no batch under way, on smaller batches: half of
    the remaining samples, then a quarter. So its reader and random operators advance.
    """
    catalog, substitute = reader.open().catalog, reader.substitute
    found: dict[int, Exception] = {}
    parts = np.array_split(samples, 2)
    try:
        while parts:
            part = parts.pop()
            substitute.only = part
            error = _failure(pipeline) if part.size else None
            if error and part.size > 1:
                parts += np.array_split(part, 2)
            elif error:
                path = catalog.path(int(part[0]) * catalog.pieces)
                found[int(part[0])] = RecordError(path, failure(error))
    finally:
        substitute.only = None
    return found


def _failure(pipeline: Any) -> Exception | None:
    """The error of the next batch."""
    pipeline.schedule_run()
    try:
        pipeline.share_outputs()
    except RuntimeError as error:
        return error.with_traceback(None)
    pipeline.release_outputs()
    return None
