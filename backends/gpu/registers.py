"""The registers of a controller at a PCI address: doorbells and queue depth.

Source: NVM Express Base Specification 2.0, "Controller Properties": CAP and the doorbells.
"""

import ctypes
import errno
import mmap
import os
from pathlib import Path

import numpy as np

from ...contract._types import HostBuffer, address_of
from ...contract.errors import BackendUnavailable

_DOORBELLS, _PAGE = 0x1000, 4096  # bytes: the offset in BAR0, a page
_REMEDY = "run as root, in a container with --privileged, and with Secure Boot off (lockdown)"


class Registers:
    """The registers of a controller, mapped into this process.

    Attributes:
        doorbells: uint8[n], the pages with the doorbells. The mapping lives as long as this array.
            Access raises SIGBUS once the controller is gone.
        max_depth: the most entries of a queue.
    """

    def __init__(self, address: str, granted: int) -> None:
        """Map the registers of the controller at a PCI address, with `granted` I/O queue pairs.

        Raises:
            BackendUnavailable: the kernel does not allow the mapping.
            OSError: the registers cannot be mapped, or the controller does not answer.
        """
        memory = map_registers(address)
        start = address_of(memory)
        low, high = (ctypes.c_uint32.from_address(start + at).value for at in (0, 4))
        if low == high == 0xFFFFFFFF:
            raise OSError(errno.ENODEV, "its registers cannot be read", address)
        self.max_depth = (low & 0xFFFF) + 1  # CAP.MQES
        self._stride = 4 << (high & 15)  # CAP.DSTRD
        nbytes = -(-2 * (granted + 1) * self._stride // _PAGE) * _PAGE
        # The GPU gets access to the doorbells only.
        self.doorbells = memory[_DOORBELLS : _DOORBELLS + nbytes]

    def offsets(self, qid: int) -> tuple[int, int]:
        """Offsets in `doorbells` of a submission queue's doorbell and its completion queue's."""
        first = 2 * qid * self._stride
        return first, first + self._stride


def map_registers(address: str, root: str = "/") -> HostBuffer:
    """Map BAR0 of a PCI function; raises as `Registers`."""
    path = Path(root) / "sys/bus/pci/devices" / address / "resource0"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise
        what = f"the registers of {address} cannot be mapped: {error.strerror}"
        raise BackendUnavailable(what, _REMEDY) from None
