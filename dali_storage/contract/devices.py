"""The report of a backend about this machine and its devices."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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


@runtime_checkable
class SupportsStatus(Protocol):
    """A backend that may not work on every machine."""

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        """Return the reason this machine cannot run the backend, with a remedy; None if it can."""


@runtime_checkable
class SupportsDevices(Protocol):
    """A backend that uses devices."""

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        """List the machine's devices that the backend can read from or into, for the doctor.

        An option that needs additional hardware may be listed, too. Devices are opened read-only
        for a moment, if at all.
        """


def problem_of(backend: object) -> BackendUnavailable | None:
    """Return the reason this machine cannot run a backend; None if it can, or does not know."""
    return backend.unavailable() if isinstance(backend, SupportsStatus) else None


def devices_of(backend: object) -> list[DeviceStatus]:
    """List the machine's devices for a backend."""
    return [*backend.devices()] if isinstance(backend, SupportsDevices) else []
