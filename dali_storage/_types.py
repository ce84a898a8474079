"""Array and path types that several modules share."""

import os
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
"""int64[n]: indices, sizes, or offsets in bytes."""

Buffer: TypeAlias = npt.NDArray[np.uint8]
"""One-dimensional memory that batches are read into."""

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path, as the functions of `os` accept it."""
