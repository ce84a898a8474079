"""The names of samples in DALI's property `source_info`, which its Python API cannot set.

pybind11 gives foreign extensions the C++ object behind a Python object, by the protocol
`_pybind11_conduit_v1_`, and None for another type or ABI. libdali.so exports the method of the
object. Without one of the two, names stay empty, and `problem()` says why.
"""

import ctypes
import functools
import os
from collections import deque
from collections.abc import Callable, Container, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import nvidia.dali
from nvidia.dali import backend_impl
from nvidia.dali.tensors import TensorListCPU

from ..contract._types import IntArray
from ..contract.errors import BackendUnavailable
from ..reading.source import BatchStream
from .compat import REMEDY, VERSION

_ABI = b"system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"  # of pybind11
_CLASS = "N4dali10TensorListINS_10CPUBackendEEE"  # dali::TensorList<dali::CPUBackend>, mangled
_STRING = "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"  # const std::string &
_SETTER = f"_Z{_CLASS[:-1]}13SetSourceInfoEi{_STRING}"
_WORDS = 4  # of a std::string in libstdc++: address, size, and 16 bytes that no reader uses


@functools.cache
def _bound() -> tuple[Callable[..., None], Callable[[Any, bytes], int], object]:
    """DALI's method, a function for the pointer in a capsule, and a capsule of the class."""
    # PyDLL keeps the interpreter lock, which costs more to release than a call takes.
    library = os.path.join(os.path.dirname(nvidia.dali.__file__), "libdali.so")
    method = ctypes.PyDLL(library)[_SETTER]
    method.restype, method.argtypes = None, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    kind = ctypes.c_char.in_dll(ctypes.PyDLL(backend_impl.__file__), f"_ZTI{_CLASS}")
    name, address, python = ctypes.c_char_p, ctypes.c_void_p, ctypes.pythonapi
    make: Any = ctypes.PYFUNCTYPE(ctypes.py_object, address, name, address)
    capsule = make(("PyCapsule_New", python))(ctypes.addressof(kind), b"St9type_info", None)
    pointer: Any = ctypes.PYFUNCTYPE(address, ctypes.py_object, name)
    return method, pointer(("PyCapsule_GetPointer", python)), capsule


def name_samples(tensors: TensorListCPU, names: Sequence[bytes]) -> None:
    """Set the names of all samples; raises many kinds of errors if this DALI has another ABI."""
    method, pointer, kind = _bound()
    capsule = tensors._pybind11_conduit_v1_(_ABI, kind, b"raw_pointer_ephemeral")
    if capsule is None or len(tensors) != len(names):
        raise TypeError(f"{type(tensors).__name__} is not a list of {len(names)} samples of DALI")
    # For 256 names in one block this takes 90 us; one by one, 200.
    text = np.frombuffer(b"".join(names) or b"\0", np.uint8)
    strings = np.zeros((len(names), _WORDS), np.uint64)
    strings[:, 1] = sizes = np.fromiter(map(len, names), np.uint64, len(names))
    strings[:, 0] = text.ctypes.data + np.cumsum(sizes) - sizes
    first, step, samples = strings.ctypes.data, strings.strides[0], range(len(names))
    places = range(first, first + step * len(names), step)
    deque(map(method, repeat(pointer(capsule, _CLASS.encode())), samples, places), 0)


@functools.cache
def problem() -> BackendUnavailable | None:
    """Try to name a sample; return why this does not work, or None."""
    probe = TensorListCPU(np.zeros((1, 1), np.uint8))
    try:
        name_samples(probe, [b"name"])
        why = "" if probe[0].source_info() == "name" else "DALI does not return the name"
    except (AttributeError, OSError, TypeError, ValueError) as error:
        why = str(error)
    what = f"DALI {VERSION} does not let Python sources set source_info: {why}"
    return BackendUnavailable(what, REMEDY) if why else None


class Names:
    """The names of a reader's samples: of all outputs for True, or for None of those `asked` for.

    Attributes:
        outputs: the numbers of the outputs to be named.

    Raises:
        BackendUnavailable, ValueError: True, and samples cannot be named, or have no names.
    """

    def __init__(self, source: BatchStream, wish: bool | None, asked: Container[int] = ()) -> None:
        self._catalog = catalog = source.open()[0]
        info = catalog.source_info
        on_gpu = source.memory.kind == "gpu"
        known = not on_gpu and (info is None or len(info) == catalog.file_count)
        wanted = [it for it in source.fmt.named if wish or (wish is None and it in asked)]
        why = problem() if wanted else None
        if wish and (why or not wanted or not known):
            where = " in GPU memory" if on_gpu else ""
            what = f"source_info must not be True: {source} has no names for its samples{where}"
            raise why or ValueError(what)
        self.outputs = wanted if known and not why else []
        self._found = [find() for find in info or () if self.outputs]

    def put(self, tensors: TensorListCPU, samples: IntArray, output: int) -> None:
        """Name the samples in one of the `outputs` of a batch."""
        pieces = self._catalog.pieces
        each = self._catalog.pieces_of(samples)[output % pieces :: pieces]
        name_samples(tensors, self._of(each))

    def _of(self, samples: IntArray) -> list[bytes]:
        catalog, files = self._catalog, self._catalog.files(samples)
        starts, names = catalog.starts(samples).tolist(), catalog.file_names(files)
        if self._found:
            found = [self._found[file] for file in files.tolist()]
            return [it.get(start, b"") for it, start in zip(found, starts, strict=True)]
        if catalog.ranges is None:
            return names
        return [b"%b at index %d" % each for each in zip(names, starts, strict=True)]
