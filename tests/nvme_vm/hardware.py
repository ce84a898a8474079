"""The hardware of a machine, and the arguments of QEMU for it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EIO
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ReadError:
    """Reads of a sector of 512 bytes of the image fail, or only the first one."""

    sector: int
    once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """A namespace of a controller, with so many bytes of metadata per block.

    They follow the data of each block if it is `extended`, and are separate otherwise.
    """

    image: Path
    logical_block_size: int = 512
    metadata: int = 0
    extended: bool = False
    zoned: bool = False
    read_errors: tuple[ReadError, ...] = ()

    def block_device(self, name: str) -> str:
        """The value of QEMU's -blockdev for a node `name` with the image."""
        file: dict[str, object] = {
            "driver": "file",
            "filename": str(self.image),
            "cache": {"no-flush": True},  # the image need not survive a power failure
        }
        if self.read_errors:
            errors = [
                {"event": "read_aio", "sector": e.sector, "once": e.once, "errno": EIO}
                for e in self.read_errors
            ]
            file = {"driver": "blkdebug", "image": file, "inject-error": errors}
        return json.dumps({"driver": "raw", "node-name": name, "file": file})


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """An NVMe controller, which the guest finds by its serial number.

    Its largest transfer is 4 KiB << mdts.
    """

    serial: str
    namespaces: tuple[Namespace, ...]
    mdts: int = 7


def shared_directory(tag: str, path: Path, readonly: str) -> Iterator[str]:
    """QEMU's arguments for a directory that the guest mounts by 9p."""
    rights = {"security_model": "none", "multidevs": "remap", "readonly": readonly}
    yield from ("-fsdev", options("local", id=tag, path=path, **rights))
    yield from ("-device", options("virtio-9p-pci", fsdev=tag, mount_tag=tag))


def attached(number: int, controller: Controller) -> Iterator[str]:
    """QEMU's arguments for a controller on its own port, so that it can be removed."""
    name, port = f"nvme{number}", f"port{number}"
    yield from ("-device", options("pcie-root-port", id=port, chassis=number))
    properties = {"serial": controller.serial, "mdts": controller.mdts}
    yield from ("-device", options("nvme", id=name, bus=port, **properties))
    for nsid, namespace in enumerate(controller.namespaces, 1):
        disk = f"disk{number}n{nsid}"
        yield from ("-blockdev", namespace.block_device(disk))
        yield "-device"
        yield options(
            "nvme-ns",
            bus=name,
            nsid=nsid,
            drive=disk,
            logical_block_size=namespace.logical_block_size,
            physical_block_size=namespace.logical_block_size,
            ms=namespace.metadata,
            mset=int(namespace.extended),
            zoned="on" if namespace.zoned else "off",
        )


def options(driver: str, **properties: object) -> str:
    """The value of -device and the like. A comma in a value is written twice."""
    words = (f"{name}={str(value).replace(',', ',,')}" for name, value in properties.items())
    return ",".join([driver, *words])
