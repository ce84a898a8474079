"""What a backend reports about a device of this machine."""

from dataclasses import dataclass

from .errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Whether a device can be read.

    Attributes:
        name: what a user would pass to the backend: the path of a node in /dev, a PCI address.
        kind: what it is, such as "NVMe disk".
        problem: why it cannot be read and what would help; None if it can.
    """

    name: str
    kind: str
    problem: BackendUnavailable | None = None
