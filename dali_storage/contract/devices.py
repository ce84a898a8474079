"""What a backend reports about a device of this machine."""

from dataclasses import dataclass

from .errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """Whether a device can be read, or read into.

    Attributes:
        name: what a user would pass to the backend: the path of a node in /dev, a PCI address.
        kind: what it is, such as "NVMe disk", and of a GPU, which use of it this is about.
        problem: why it cannot be used and what would help; None if it can.
    """

    name: str
    kind: str
    problem: BackendUnavailable | None = None
