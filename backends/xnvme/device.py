"""Devices and files of libxnvme, and memory that they can write to.

The sources of the layouts are libxnvme_opts.h and libxnvme_geo.h. `struct xnvme_opts` is the same
in all versions up to the offset 88; behind it, main has inserted a field.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._types import Buffer
from ...errors import os_error
from .library import Library

_OPTS_BYTES = 512  # more than any version's struct xnvme_opts: 136 in 0.7.5, 168 in main
OPTS = np.dtype(
    {
        "names": ["be", "mem", "sync", "async", "nsid", "rdonly", "wronly", "rdwr", "direct"],
        "formats": ["<u8", "<u8", "<u8", "<u8", "<u4", "u1", "u1", "u1", "u1"],
        "offsets": [0, 16, 24, 32, 48, 52, 53, 54, 57],
        "itemsize": _OPTS_BYTES,
    }
)
_OPTS_READ = 58  # bytes of it, up to `direct`
GEOMETRY = np.dtype(
    {
        "names": ["type", "tbytes", "mdts_nbytes", "lba_nbytes", "lba_extended"],
        "formats": ["<u4", "<u8", "<u4", "<u4", "u1"],
        "offsets": [0, 32, 48, 52, 56],
        "itemsize": 64,
    }
)

LIBRARY_LOCK = threading.RLock()
"""To be held while libxnvme makes or ends something: upcie has one heap and one list of controllers
for all devices of a process, and no lock of its own. Memory dies anywhere, also in a garbage
collection in the middle of such a call: hence an RLock."""
# Whoever held it, is not there in a forked process. Python does the same with its own locks.
os.register_at_fork(after_in_child=LIBRARY_LOCK._at_fork_reinit)  # type: ignore[attr-defined]

_left_open: list[Callable[[], bool]] = []  # what is asked of devices that cannot be closed

_madvise = ctypes.CDLL(None).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


@dataclass(frozen=True, slots=True)
class Geometry:
    """What a device is like, as libxnvme tells it.

    Attributes:
        kind: "conventional", "zoned" or "key-value".
        size: bytes.
        lba_bytes: bytes of a logical block, with its metadata where that is interleaved.
        has_metadata: whether it is.
        max_transfer: bytes, the most that one command may ask for.
    """

    kind: str
    size: int
    lba_bytes: int
    has_metadata: bool
    max_transfer: int


class Device:
    """A device or a file that libxnvme has opened, always for reading only.

    It is closed when nothing needs it any more: `close()` was called, its queues are closed, and
    the memory it gave out is gone.

    Attributes:
        library: what it was opened with.
        pointer: the struct xnvme_dev.
        io: the name of the asynchronous implementation that its queues have.
        lost: it has not answered a queue of it, and is given up.
    """

    def __init__(
        self,
        library: Library,
        uri: bytes,
        *,
        io: str | None,
        be: str = "linux",
        sync: str | None = None,
        file: bool = False,
        direct: bool = False,
        nsid: int = 1,
        is_ours: Callable[[], bool] | None = None,
    ) -> None:
        """Open it.

        Args:
            library: libxnvme.
            uri: a path, a PCI address, or what else the back end `be` opens.
            io: libxnvme's name of an asynchronous implementation; None: the back end's own.
            be: libxnvme's name of a back end.
            sync: of a synchronous implementation.
            file: open it as a file.
            direct: with O_DIRECT.
            nsid: of a controller that is given by its PCI address, which namespace.
            is_ours: asked before it is closed: whether it can still be touched. None: always.

        Raises:
            OSError: it cannot be opened, or not with these options; names the URI.
        """
        self.library = library
        self.lost = False
        names = {"be": be, "sync": sync, "async": io}
        self._names = {name: value.encode() for name, value in names.items() if value is not None}
        opts = np.zeros((), OPTS)
        for name, value in self._names.items():  # libxnvme copies pointers, so they are kept
            opts[name] = ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
        opts["nsid"], opts["rdonly"], opts["direct"] = nsid, 1, direct
        opener = library.xnvme_file_open if file else library.xnvme_dev_open
        ctypes.set_errno(0)
        with LIBRARY_LOCK:
            pointer = opener(uri, opts.ctypes.data)
        if not pointer:
            number = ctypes.get_errno() or errno.EIO
            raise os_error(number, uri, ": libxnvme cannot open it")
        closer = library.xnvme_file_close if file else library.xnvme_dev_close
        self._handle: _Handle | None = _Handle(pointer, closer, is_ours)
        self._is_ours = is_ours
        self.pointer: int = pointer
        try:
            self.io = self._check(uri, opts, io)
        except BaseException:
            self.close()
            raise

    @property
    def is_gone(self) -> bool:
        """Whether it can be touched no more: it does not answer, or is another driver's now."""
        return self.lost or not (self._is_ours is None or self._is_ours())

    @property
    def handle(self) -> _Handle:
        """What keeps the device open, for as long as somebody has it.

        Raises:
            ValueError: the device is closed.
        """
        if self._handle is None:
            raise ValueError("the device is closed")
        return self._handle

    @property
    def nsid(self) -> int:
        """The number of the namespace."""
        return int(self.library.xnvme_dev_get_nsid(self.pointer))

    @property
    def descriptor(self) -> int:
        """The number of the open file behind it: the first field of every back end's state.

        Only of the back end "linux".
        """
        state = self.library.xnvme_dev_get_be_state(self.pointer)
        return ctypes.c_int.from_address(state).value

    def geometry(self) -> Geometry:
        """Ask the device.

        Raises:
            OSError: it does not tell.
        """
        with LIBRARY_LOCK:  # it may ask the device
            address = self.library.xnvme_dev_get_geo(self.pointer)
        found = structure(address, GEOMETRY)
        kinds = {1: "conventional", 2: "zoned", 3: "key-value"}
        kind = kinds.get(int(found["type"]))
        if kind is None or (kind != "key-value" and not found["lba_nbytes"]):
            raise OSError(f"libxnvme cannot tell the geometry (io {self.io!r})")
        return Geometry(
            kind=kind,
            size=int(found["tbytes"]),
            lba_bytes=int(found["lba_nbytes"]),
            has_metadata=bool(found["lba_extended"]),
            max_transfer=int(found["mdts_nbytes"]),
        )

    def allocate(self, nbytes: int) -> Buffer:
        """Memory that the device can write to: uint8, at least `nbytes`, page-aligned.

        Freed when the last reference to it dies; until then the device stays open.

        Raises:
            MemoryError: there is not so much.
        """
        handle, nbytes = self.handle, max(nbytes, 1)
        with LIBRARY_LOCK:
            address = self.library.xnvme_buf_alloc(self.pointer, nbytes)
        if not address:
            raise MemoryError(
                f"libxnvme cannot allocate {nbytes} bytes: make batches smaller, or memory larger "
                "(where it comes from hugepages: sysctl vm.nr_hugepages)"
            )
        memory = foreign_memory(address, nbytes)
        weakref.finalize(memory.base, _free, self.library, handle, address).atexit = False
        _madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # it need not be possible
        return memory

    def close(self) -> None:
        """Let go of it. Twice is fine."""
        self._handle = None

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _check(self, uri: bytes, wanted: np.ndarray[Any, Any], io: str | None) -> str:
        """What libxnvme has made of the options; it replaces some of them without a word."""
        address = self.library.xnvme_dev_get_opts(self.pointer)
        found = structure(address, OPTS, _OPTS_READ)
        for name in ("rdonly", "wronly", "rdwr", "direct"):
            if bool(found[name]) != bool(wanted[name]):
                hint = f": libxnvme cannot open it with {name}={int(wanted[name])}"
                raise os_error(errno.EINVAL, uri, hint)
        got = ctypes.c_char_p(int(found["async"])).value or b""
        if io is not None and got.decode() != io:
            raise os_error(
                errno.EINVAL, uri, f": libxnvme opens it with {got.decode()!r}, not {io!r}"
            )
        return got.decode()


class _Handle:
    """An open struct xnvme_dev: closed when the last reference to this dies.

    In a process forked from the one that opened it nothing is closed or freed: a controller would
    be switched off that the other one goes on to use.

    Attributes:
        pointer: the structure.
        process: the one that opened it.
    """

    def __init__(self, pointer: int, closer: Any, is_ours: Callable[[], bool] | None) -> None:
        self.pointer = pointer
        self.process = os.getpid()
        weakref.finalize(self, _close, self.process, closer, pointer, is_ours).atexit = False


def _close(process: int, closer: Any, pointer: int, is_ours: Callable[[], bool] | None) -> None:
    if process != os.getpid():
        return
    if is_ours is None or is_ours():
        with LIBRARY_LOCK:
            closer(pointer)
    else:
        _left_open.append(is_ours)


class _Memory:
    """Foreign memory as numpy takes it; all arrays of it, and slices of those, keep this alive."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),  # not for reading only
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def foreign_memory(address: int, nbytes: int) -> Buffer:
    """Memory of others as an array; `.base` of it is an object that lives as long as any such."""
    return np.asarray(_Memory(address, nbytes))


def _free(library: Library, handle: _Handle, address: int) -> None:
    if handle.process == os.getpid():
        with LIBRARY_LOCK:
            library.xnvme_buf_free(handle.pointer, address)


def structure(address: int, dtype: np.dtype[Any], nbytes: int | None = None) -> Any:
    """A copy of a structure in foreign memory; of its first `nbytes`, if it may be shorter."""
    content = ctypes.string_at(address, nbytes or dtype.itemsize)
    return np.frombuffer(content.ljust(dtype.itemsize, b"\0"), dtype)[0]
