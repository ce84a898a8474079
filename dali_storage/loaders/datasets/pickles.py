"""The pickles of CIFAR, loaded without importing or calling anything else named in a file."""

import io
import pickle
from typing import Any

import numpy as np

RECORD_BYTES = 3 * 32 * 32
"""Size of an image: 32 x 32 pixels; the red, the green and the blue plane, row by row."""


def parse(pickled: bytes) -> dict[Any, Any]:
    """The dict in a pickle: text (decoded as Latin-1), numbers, lists, and arrays of bytes.

    Raises:
        ValueError: the pickle names anything foreign to the published files, or is damaged.
    """
    file = io.BytesIO(pickled)
    try:
        found = _Unpickler(file, encoding="latin-1").load()
        if type(found) is not dict:
            raise ValueError("the pickle is not a dict")
        return found
    except Exception as error:  # pickle documents that it may be any
        why = str(error) or "the end is missing"
        raise ValueError(
            f"byte {file.tell()}: {why}; the file is truncated, damaged, or was repickled, by "
            "Python 3 perhaps: extract the original archive again"
        ) from None


def _bytes_dtype(kind: str, *_: object) -> np.dtype[np.uint8]:
    """`numpy.dtype` of the images: numpy believes what a pickle tells about any other."""
    if kind != "u1":
        raise pickle.UnpicklingError(f"the dtype {kind!r:.100} is not in the published files")
    return np.dtype(np.uint8)


_ALLOWED = {
    "numpy.core.multiarray._reconstruct": np.empty(0).__reduce__()[0],
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _bytes_dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (full := f"{module}.{name}") not in _ALLOWED:
            raise pickle.UnpicklingError(f"{full[:100]!r} is not in the published files")
        return _ALLOWED[full]
