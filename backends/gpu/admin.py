"""Admin commands of an open controller, run by libxnvme.

Source: NVM Express Base Specification 2.0, "Get Features", "Number of Queues" (feature 07h).
"""

import errno

import numpy as np

from ..xnvme.abi import ADMIN_COMMAND, PHASE_BITS, SCT_AND_SC
from ..xnvme.device import LIBRARY_LOCK, XnvmeDevice
from ..xnvme.status import describe_status

_GET_FEATURES = 10  # opcode
_NUMBER_OF_QUEUES = 7  # feature identifier


class AdminCommand:
    """An admin command of a device; keeps its completion even if Ctrl-C interrupts `run()`."""

    def __init__(self, device: XnvmeDevice, opcode: int, **fields: int) -> None:
        """Prepare the command; `fields` are named as in ADMIN_COMMAND."""
        self._device = device
        self._context = np.zeros(1, ADMIN_COMMAND)
        self._context["opcode"], self._context["device"] = opcode, device.pointer
        self._context["status"] = 0xFFFF  # never the status of a completed command
        for name, value in fields.items():
            self._context[name] = value

    @property
    def status(self) -> int:
        """SCT << 8 | SC of the completion: 0 is success."""
        return int(self._context["status"][0] >> PHASE_BITS & SCT_AND_SC)

    @property
    def result(self) -> int:
        """Dword 0 of the completion."""
        return int(self._context["result"][0])

    def run(self) -> int:
        """Submit the command, wait, return its status; OSError if the controller is given up."""
        with LIBRARY_LOCK:
            if self._device.is_gone:
                raise OSError(errno.ENODEV, "the controller is no longer usable; open a new reader")
            run = self._device.library.xnvme_cmd_pass_admin
            error = run(self._context.ctypes.data, None, 0, None, 0)
        if error and int(self._context["status"][0]) == 0xFFFF:
            self._device.lost = True
            raise OSError(errno.ETIMEDOUT, "the controller does not answer an admin command")
        return self.status


def count_granted(device: XnvmeDevice) -> int:
    """Query the number of I/O queue pairs granted by the controller, including libxnvme's own."""
    command = AdminCommand(device, _GET_FEATURES, cdw10=_NUMBER_OF_QUEUES)
    if status := command.run():
        raise refused("report its number of queues", status)
    return min(command.result & 0xFFFF, command.result >> 16) + 1


def refused(doing: str, status: int) -> OSError:
    """The error for an admin command completed with a status other than success."""
    number, what = describe_status(status, "upcie")
    return OSError(number, f"the controller does not {doing}: {what}")
