"""The pickles of CIFAR, loaded without importing or calling anything named in a file.

A pickle is a program for a stack machine, and may call any function. Here the machine has only the
opcodes of the published files, written by cPickle of Python 2 (protocol 2), and records every name
and call of a file as a `_Call`, which does nothing.
"""

import io
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

RECORD_BYTES = 3 * 32 * 32
"""Size of an image: 32 x 32 pixels; the red, the green and the blue plane, row by row."""

_MOST_BYTES = 1 << 22  # beside the pixels; the published files have 1.7 MB at most
_NAMES = "numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"
_OPCODES = b"\x80.(}]aet\x85\x86\x87NJKMU\x88\x89qrhjcRb"  # described in Lib/pickletools.py


def parse(pickled: bytes) -> dict[str, Any]:
    """The dict in a pickle: text (decoded as Latin-1), integers, lists, and arrays of images.

    An array is uint8[n, RECORD_BYTES], a view of `pickled`. Any other value has no meaning.

    Raises:
        ValueError: the pickle has anything foreign to the published files, or is damaged.
    """
    file = _File(pickled)
    try:
        found = _Unpickler(file).load()
        if type(found) is not dict:
            raise ValueError("the pickle is not a dict")
        return {key: _array(value, pickled) for key, value in found.items()}
    except Exception as error:  # pickle documents that it may be any
        why = str(error) or "the end is missing"
        raise ValueError(
            f"byte {file.tell()}: {why}; the file is truncated, damaged, or was repickled, by "
            "Python 3 perhaps: extract the original archive again"
        ) from None


def _array(value: Any, pickled: bytes) -> Any:
    """The array of a recorded call; any other value unchanged."""
    match value:
        case _Call(
            "numpy.core.multiarray._reconstruct",
            (_Call("numpy.ndarray", ()), (0,), "b"),
            (
                1,
                (int(count), 3072),
                _Call("numpy.dtype", ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)),
                bool(transposed),
                range() as place,
            ),
        ) if len(place) == count * RECORD_BYTES:
            pixels = np.frombuffer(pickled, np.uint8, len(place), place.start)
            return pixels.reshape(count, RECORD_BYTES, order="F" if transposed else "C")
    return value


@dataclass(slots=True, eq=False)
class _Call:
    """A name in a pickle, called there with `arguments` and given a `state`."""

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _File(io.BytesIO):
    """A pickle. Each hostile byte, except in pixels, may cost 64 bytes of memory."""

    left = _MOST_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        content = super().read(size)
        self.left -= len(content)
        if self.left < 0:
            raise pickle.UnpicklingError("there is too much data beside the images")
        return content


class _Unpickler(pickle._Unpickler):
    """Unpickler in Python: the class in C allocates as much memory as a pickle demands."""

    append: Callable[[object], None]
    pop_mark: Callable[[], list[Any]]
    stack: list[Any]

    def __init__(self, file: _File) -> None:
        super().__init__(file, encoding="latin-1")
        self._file = file

    def find_class(self, module: str, name: str) -> _Call:
        if (full := f"{module}.{name}") not in _NAMES:
            raise pickle.UnpicklingError(f"{full[:100]!r} is not in the published files")
        return _Call(full)

    def _set_items(self) -> None:
        items = self.pop_mark()
        if set(map(type, items[::2])) - {str}:  # to hash a nested key may crash
            raise pickle.UnpicklingError("a dict has keys other than text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _note_call(self) -> None:
        arguments, call = self.stack.pop(), self.stack.pop()
        if type(call) is not _Call or type(arguments) is not tuple:
            raise pickle.UnpicklingError("a call is not in the published files")
        self.append(_Call(call.name, arguments))  # pickle's REDUCE would copy the arguments

    def _skip_pixels(self) -> None:
        """Push the range of the file for text of more than 255 bytes."""
        (nbytes,) = struct.unpack("<I", self._file.read(4))
        start = self._file.tell()
        self.append(range(start, self._file.seek(start + nbytes)))

    def _refuse(self) -> None:
        raise pickle.UnpicklingError("the opcode before it is not in the published files")

    dispatch: ClassVar[dict[int, Any]] = {
        **dict.fromkeys(range(256), _refuse),
        **{opcode: pickle._Unpickler.dispatch[opcode] for opcode in _OPCODES},
        pickle.REDUCE[0]: _note_call,
        pickle.SETITEMS[0]: _set_items,
        pickle.BINSTRING[0]: _skip_pixels,
    }
