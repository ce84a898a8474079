"""Array and path types for several modules."""

import os
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
"""int64[n]: indices, sizes, or offsets in bytes."""

HostBuffer: TypeAlias = npt.NDArray[np.uint8]
"""One-dimensional host memory."""


class Buffer(Protocol):
    """One-dimensional memory for batches: of the host (`HostBuffer`) or of a GPU.

    A slice keeps its buffer alive.
    """

    @property
    def nbytes(self) -> int:
        """The length in bytes."""

    def __getitem__(self, part: slice, /) -> Any: ...

    def __setitem__(self, part: slice, value: Any, /) -> None:
        """Fill a part with one byte (an int), or copy as many bytes of host memory to it."""

    def tobytes(self) -> bytes:
        """Copy to host memory."""


def address_of(buffer: Buffer) -> int:
    """Return the address of a buffer's first byte."""
    found: Any = buffer
    interface = getattr(found, "__cuda_array_interface__", None) or found.__array_interface__
    return int(interface["data"][0])


PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path, as the functions of `os` accept it."""
