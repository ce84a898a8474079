"""The report of a backend about this machine and its devices."""

from collections.abc import Iterable
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


class SupportsStatus:
    """The capability of a reader to report on the machine; by default it has nothing to report."""

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        """Return the reason this machine cannot run the backend, with a remedy; None if it can."""
        return None

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        """List the machine's devices that the backend can read from or into, for the doctor.

        An option that needs additional hardware may be listed, too. Devices are opened read-only
        for a moment, if at all.
        """
        return ()
