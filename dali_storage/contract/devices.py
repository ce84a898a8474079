"""The report of a backend about a device of this machine."""

from dataclasses import dataclass

from .errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """The status of a device: usable for reads, or the problem.

    Attributes:
        name: the name to pass to the backend: the path of a node in /dev, a PCI address.
        kind: the kind of device, such as "NVMe disk"; for a GPU, with the use in question.
        problem: the reason why the device cannot be used, with the remedy; None if it can.
    """

    name: str
    kind: str
    problem: BackendUnavailable | None = None
