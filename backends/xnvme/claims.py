"""Controllers that libxnvme drives in this process, while nobody else does.

libxnvme knows an open controller by its PCI address only. When the kernel's driver takes it, its
registers are no longer there for this process: to touch them ends it by a SIGBUS. libxnvme does so
when it closes the device, and when it opens the same address once more. It may do so late, because
memory that is still alive, or a traceback, keeps a device open.
"""

from __future__ import annotations

import os
import weakref

from ...errors import BackendUnavailable
from . import pci
from .device import LIBRARY_LOCK

_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


class Claim:
    """A controller, for as long as a driver for user space has it without a break.

    Attributes:
        address: where it is.
    """

    def __init__(self, address: str) -> None:
        """Prepare to open it.

        Raises:
            BackendUnavailable: this process has it open from an earlier time.
        """
        with LIBRARY_LOCK:
            claims = list(_claims)
        if any(claim.address == address and not claim.holds() for claim in claims):
            raise BackendUnavailable(
                f"{address} was open in this process before another driver had it, and was not "
                "closed then: libxnvme can open it again in a new process only"
            )
        self.address: str = address
        self._binding = _binding(address)

    def keep(self) -> None:
        """Remember it, now that it is open: until nothing asks any more whether it holds."""
        with LIBRARY_LOCK:
            _claims.add(self)

    def holds(self) -> bool:
        """Whether the controller can still be touched."""
        return self._binding is not None and _binding(self.address) == self._binding


def _binding(address: str) -> int | None:
    """A number for the time that a driver has a controller; None if that is not for user space."""
    if pci.driver_of(address) not in pci.USER_SPACE_DRIVERS:
        return None
    try:
        return os.lstat(f"/sys/bus/pci/devices/{address}/driver").st_ino
    except OSError:
        return None
