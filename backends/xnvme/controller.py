"""An open NVMe controller at a PCI address: whether it is still ours, and what it is.

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
    """Our hold on a controller, which ends when it is unbound from its user-space driver.

    libxnvme knows an open controller by its PCI address only. Once another driver has the
    controller, its registers are no longer mapped in this process: to touch them is a SIGBUS.
    libxnvme does so when it closes the device, and when it opens the same address again. Both can
    happen late, because memory that is still alive, or a traceback, keeps a device open.
    """

    def __init__(self, address: str) -> None:
        """Prepare to open the controller at a PCI address."""
        self._address: str = address
        with LIBRARY_LOCK:
            others = list(_registered)
        if any(other._address == address and not other.is_ours() for other in others):
            what = f"{address} was still open in this process when another driver took it over"
            raise BackendUnavailable(what, "restart the process to open it again")
        self._binding = _binding(address)

    def register(self) -> None:
        """Remember that the controller is open, for as long as something uses `is_ours`."""
        with LIBRARY_LOCK:
            _registered.add(self)

    def is_ours(self) -> bool:
        """Whether the controller can still be touched."""
        return self._binding is not None and _binding(self._address) == self._binding


def _binding(address: str) -> int | None:
    """A number that identifies a binding to a user-space driver; None if it has another driver."""
    if driver_of(address) not in USER_SPACE_DRIVERS:
        return None
    try:
        return os.lstat(f"/{FUNCTIONS}/{address}/driver").st_ino
    except OSError:
        return None


def identify(device: XnvmeDevice) -> tuple[str, tuple[str, ...]]:
    """The serial number of an open controller, and the world-wide names of the open namespace.

    The kernel uses one of these names, depending on what else it knows. A name by UUID (uuid.*) is
    not among them: it takes another command to read the UUID.
    """
    library = device.library
    with LIBRARY_LOCK:  # may send commands to the device
        address = library.xnvme_dev_get_ctrlr(device.pointer)
        controller = copy_structure(address, IDENTIFY_CONTROLLER)
        address = library.xnvme_dev_get_ns(device.pointer)
        namespace = copy_structure(address, IDENTIFY_NAMESPACE)
    serial, model = (controller[name].tobytes().rstrip(b" \0") for name in ("serial", "model"))
    as_text = serial.split(b"\0")[0].decode("utf-8", "surrogateescape")  # as sysfs is read
    unique = [namespace[name].tobytes() for name in ("nguid", "eui64")]
    by_model = f"nvme.{controller['vendor']:04x}-{serial.hex()}-{model.hex()}-{device.nsid:08x}"
    return as_text.strip(), (*(f"eui.{name.hex()}" for name in unique if any(name)), by_model)
