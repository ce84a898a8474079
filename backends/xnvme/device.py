"""Devices and files opened by libxnvme, and their memory for DMA."""

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

from ...contract._types import HostBuffer
from ...contract.errors import os_error
from ..linux import libc
from .abi import GEOMETRY, GEOMETRY_KINDS, OPTS, OPTS_READ, copy_structure
from .library import Library

LIBRARY_LOCK = threading.RLock()
"""Held while libxnvme creates or destroys objects: upcie has one heap and one list of controllers
per process, and no lock. A garbage collection in the middle of such a call can free memory: hence
an RLock."""
# After fork() the owning thread is gone, so reset the lock, as CPython does with its own.
os.register_at_fork(after_in_child=LIBRARY_LOCK._at_fork_reinit)  # type: ignore[attr-defined]

_leaked_on_purpose: list[Callable[[], bool]] = []  # `is_ours` of devices that stay open


@dataclass(frozen=True, slots=True)
class Geometry:
    """The geometry of a device, as libxnvme reports it.

    Attributes:
        kind: a value of GEOMETRY_KINDS.
        size: bytes.
        lba_bytes: bytes of a logical block, including interleaved metadata.
        max_transfer: bytes of the largest read command.
        has_metadata: whether metadata is interleaved with the blocks.
        metadata_bytes: the metadata of a block, interleaved or separate.
    """

    kind: str
    size: int
    lba_bytes: int
    max_transfer: int
    has_metadata: bool
    metadata_bytes: int = 0


class XnvmeDevice:
    """A device or file opened by libxnvme, always read-only.

    The device is closed after `close()`, once its queues are closed and its memory is gone.

    Attributes:
        library: the libxnvme that opened the device.
        pointer: address of the struct xnvme_dev.
        io: the asynchronous implementation of its queues.
        lost: whether the device has stopped answering and is given up.
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
        """Open a path or a PCI address, or raise an OSError with its name.

        libxnvme's backend `be` opens it, with the asynchronous implementation `io` and the
        synchronous one `sync` (None: the backend's default); `file` selects the file API, `direct`
        O_DIRECT, `nsid` the namespace at a PCI address. Once `is_ours` returns False, the device
        must not be touched any more, not even to close it.
        """
        self.library = library
        self.lost = False
        names = {"be": be, "sync": sync, "async": io}
        self._names = {name: value.encode() for name, value in names.items() if value is not None}
        opts = np.zeros((), OPTS)
        for name, value in self._names.items():  # libxnvme keeps the pointers, so keep the strings
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
        """True if the device must not be accessed: not answering, or with another driver."""
        return self.lost or not (self._is_ours is None or self._is_ours())

    @property
    def handle(self) -> _Handle:
        """A handle that keeps the device open as long as referenced."""
        if self._handle is None:
            raise ValueError("the device is closed")
        return self._handle

    @property
    def nsid(self) -> int:
        """The number of the namespace."""
        return int(self.library.xnvme_dev_get_nsid(self.pointer))

    @property
    def descriptor(self) -> int:
        """The file descriptor of the device. Only for the backend "linux"."""
        state = self.library.xnvme_dev_get_be_state(self.pointer)
        return ctypes.c_int.from_address(state).value  # the first field of every backend's state

    def geometry(self) -> Geometry:
        """Query the geometry; OSError if unknown to libxnvme."""
        with LIBRARY_LOCK:  # may send a command to the device
            address = self.library.xnvme_dev_get_geo(self.pointer)
        found = copy_structure(address, GEOMETRY)
        kind = GEOMETRY_KINDS.get(int(found["type"]))
        if kind is None or (kind != "key-value" and not found["lba_nbytes"]):
            raise OSError(f"libxnvme cannot determine the geometry (io {self.io!r})")
        names = ("tbytes", "lba_nbytes", "mdts_nbytes")
        size, lba_bytes, max_transfer = (int(found[name]) for name in names)
        metadata = bool(found["lba_extended"]), int(found["nbytes_oob"])
        return Geometry(kind, size, lba_bytes, max_transfer, *metadata)

    def allocate(self, nbytes: int) -> HostBuffer:
        """Allocate at least `nbytes` of memory for DMA by the device: uint8, page-aligned.

        The memory is freed with its last reference; until then the device stays open.
        """
        handle, nbytes = self.handle, max(nbytes, 1)
        with LIBRARY_LOCK:
            address = self.library.xnvme_buf_alloc(self.pointer, nbytes)
        if not address:
            remedy = "use smaller batches, or provide more memory (or hugepages: vm.nr_hugepages)"
            raise MemoryError(f"libxnvme cannot allocate {nbytes} bytes: {remedy}")
        memory = foreign_memory(address, nbytes)
        weakref.finalize(memory.base, _free, self.library, handle, address).atexit = False
        libc.madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # best effort
        return memory

    def close(self) -> None:
        """Release the device. Closing twice is fine."""
        self._handle = None

    def _check(self, uri: bytes, wanted: np.ndarray[Any, Any], io: str | None) -> str:
        """Refuse options silently replaced by libxnvme; return the implementation in use."""
        address = self.library.xnvme_dev_get_opts(self.pointer)
        found = copy_structure(address, OPTS, OPTS_READ)
        for name in ("rdonly", "wronly", "rdwr", "direct"):
            if bool(found[name]) != bool(wanted[name]):
                hint = f": libxnvme cannot open it with {name}={int(wanted[name])}"
                raise os_error(errno.EINVAL, uri, hint)
        used = (ctypes.c_char_p(int(found["async"])).value or b"").decode()
        if io is not None and used != io:
            raise os_error(errno.EINVAL, uri, f": libxnvme opens it with io {used!r}, not {io!r}")
        return used


class _Handle:
    """An open struct xnvme_dev; closed when the last reference to this object dies.

    In a forked process nothing is closed or freed, because this would shut down a controller in
    use by the parent.
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
        _leaked_on_purpose.append(is_ours)


def foreign_memory(address: int, nbytes: int) -> HostBuffer:
    """Wrap foreign memory as an array; its `.base` is an object that lives as long as any slice."""
    return np.asarray((ctypes.c_uint8 * nbytes).from_address(address))


def _free(library: Library, handle: _Handle, address: int) -> None:
    if handle.process == os.getpid():
        with LIBRARY_LOCK:
            library.xnvme_buf_free(handle.pointer, address)
