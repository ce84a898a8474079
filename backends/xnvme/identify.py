"""What an NVMe controller and its namespace say of themselves, in the words of the kernel.

A map has the kernel's words. At a PCI address there is no kernel driver to ask, but the controller
itself. Sources: NVM Express Base Specification 2.0, Figure 275 (Identify Controller); NVM Command
Set Specification 1.0, Figure 97 (Identify Namespace); wwid_show(), drivers/nvme/host/sysfs.c.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .device import LIBRARY_LOCK, Device, structure

_IDENTIFY_BYTES = 4096
_CONTROLLER = np.dtype(
    {
        "names": ["vendor", "serial", "model"],
        "formats": ["<u2", "V20", "V40"],
        "offsets": [0, 4, 24],
        "itemsize": _IDENTIFY_BYTES,
    }
)
_NAMESPACE = np.dtype(
    {
        "names": ["nguid", "eui64"],
        "formats": ["V16", "V8"],
        "offsets": [104, 120],
        "itemsize": _IDENTIFY_BYTES,
    }
)


@dataclass(frozen=True, slots=True)
class Identity:
    """How the kernel would name a namespace.

    Attributes:
        serial: of the controller.
        wwids: names that it could have; which of them, depends on what else the kernel knows. A
            name by UUID (uuid.*) is not among them: that needs a list that is not asked for here.
    """

    serial: str
    wwids: tuple[str, ...]

    def difference(self, serial: str | None, wwid: str | None) -> str:
        """What tells it from what the kernel named like this; empty where nothing does.

        A name that is None is not known, and differs from nothing.
        """
        if serial is not None and serial != self.serial:
            return f"its serial is {self.serial} and was {serial}"
        if wwid is None or wwid.startswith("uuid.") or wwid in self.wwids:
            return ""
        return f"its wwid is {' or '.join(self.wwids)} and was {wwid}"


def identify(device: Device) -> Identity:
    """Ask an open controller, and the namespace that it was opened with."""
    library = device.library
    with LIBRARY_LOCK:  # libxnvme asks the device now, if it has not yet
        controller = structure(library.xnvme_dev_get_ctrlr(device.pointer), _CONTROLLER)
        namespace = structure(library.xnvme_dev_get_ns(device.pointer), _NAMESPACE)
    serial, model = (controller[name].tobytes().rstrip(b" \0") for name in ("serial", "model"))
    as_text = serial.split(b"\0")[0].decode("utf-8", "surrogateescape")  # as sysfs is read
    unique = [namespace[name].tobytes() for name in ("nguid", "eui64")]
    vendor = int(controller["vendor"])
    return Identity(
        serial=as_text.strip(),
        wwids=(
            *(f"eui.{name.hex()}" for name in unique if any(name)),
            f"nvme.{vendor:04x}-{serial.hex()}-{model.hex()}-{device.nsid:08x}",
        ),
    )
