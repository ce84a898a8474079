"""Records whose places are given by columns of numbers."""

import os
from typing import Any

import numpy as np

from ..catalog import Catalog, CatalogBuilder
from ..ranges import Ranges


def find(files: Any, offsets: Any, sizes: Any, file_ids: Any, labels: Any) -> Catalog:
    """The catalog of n ranges. TODO of the owner: .npy paths, checks, errors."""
    paths = [files] if isinstance(files, (str, bytes, os.PathLike)) else list(files)
    starts = np.asarray(offsets, np.int64)
    lengths = np.broadcast_to(np.asarray(sizes, np.int64), starts.shape)
    ids = np.zeros_like(starts) if file_ids is None else np.asarray(file_ids, np.int64)
    builder = CatalogBuilder()
    builder.extend([os.fsencode(path) for path in paths], range(len(paths)))
    named = builder.build(b"")
    values = np.arange(starts.size) if labels is None else np.asarray(labels)
    ranges = Ranges.of_columns(ids, starts, lengths)
    return Catalog(b"", named.names, named.offsets, values.astype(np.int32), ranges)
