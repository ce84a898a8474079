"""An open NVMe controller at a PCI address: its ownership, and its identity.

Source: wwid_show() in the kernel's drivers/nvme/host/sysfs.c.
"""

from __future__ import annotations

import os
import weakref

from ...contract.errors import BackendUnavailable
from ..linux.pci import FUNCTIONS, USER_SPACE_DRIVERS, driver_of
from .abi import IDENTIFY_CONTROLLER, IDENTIFY_NAMESPACE, copy_structure
from .device import LIBRARY_LOCK, XnvmeDevice

_registered: weakref.WeakSet[Ownership] = weakref.WeakSet()


class Ownership:
    """Ownership of a controller, which ends when the user-space driver is unbound.

    libxnvme identifies an open controller by PCI address only. Once another driver has the
    controller, the registers are no longer mapped in this process: any access raises SIGBUS.
    libxnvme accesses them when closing the device, and when opening the same address again. Both
    can happen late, because living memory, or a traceback, keeps a device open.
    """

    def __init__(self, address: str) -> None:
        """Prepare to open the controller at a PCI address."""
        self._address: str = address
        with LIBRARY_LOCK:
            others = list(_registered)
        if any(other._address == address and not other.is_ours() for other in others):
            what = f"{address} was still open in this process when another driver took it over"
            raise BackendUnavailable(what, "restart the process to open the controller again")
        self._binding = _binding(address)

    def register(self) -> None:
        """Remember that the controller is open, as long as `is_ours` is in use."""
        with LIBRARY_LOCK:
            _registered.add(self)

    def is_ours(self) -> bool:
        """Test if the controller may still be accessed."""
        return self._binding is not None and _binding(self._address) == self._binding


def _binding(address: str) -> int | None:
    """The identity of a binding to a user-space driver; None with another driver."""
    if driver_of(address) not in USER_SPACE_DRIVERS:
        return None
    try:
        return os.lstat(f"/{FUNCTIONS}/{address}/driver").st_ino
    except OSError:
        return None


def identify(device: XnvmeDevice) -> tuple[str, tuple[str, ...]]:
    """The serial number of an open controller, and the world-wide names of the open namespace.

    The kernel uses one of these names, depending on its other information. A name by UUID (uuid.*)
    is not included: the UUID needs another command.
    """
    library = device.library
    with LIBRARY_LOCK:  # may send commands to the device
        address = library.xnvme_dev_get_ctrlr(device.pointer)
        controller = copy_structure(address, IDENTIFY_CONTROLLER)
        address = library.xnvme_dev_get_ns(device.pointer)
        namespace = copy_structure(address, IDENTIFY_NAMESPACE)
    serial, model = (controller[name].tobytes().rstrip(b" \0") for name in ("serial", "model"))
    as_text = serial.split(b"\0")[0].decode("utf-8", "surrogateescape")  # as for text of sysfs
    unique = [namespace[name].tobytes() for name in ("nguid", "eui64")]
    by_model = f"nvme.{controller['vendor']:04x}-{serial.hex()}-{model.hex()}-{device.nsid:08x}"
    return as_text.strip(), (*(f"eui.{name.hex()}" for name in unique if any(name)), by_model)
