"""Parts of a buffer, as a format is given those of a batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dali_storage.contract.views import Views


def views_of(contents: Sequence[bytes], kind: type[Any] = np.ndarray) -> Views:
    """These contents, side by side in a new buffer."""
    sizes = np.array([len(each) for each in contents])
    buffer = np.frombuffer(bytearray().join(contents), np.uint8).view(kind)
    return Views(buffer, np.cumsum(sizes) - sizes, sizes)
