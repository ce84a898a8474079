"""The disks of the machines: their images and contents."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.nvme_vm import plan
from tests.nvme_vm.hardware import Controller, Namespace, ReadError


def sparse(path: Path, size: int) -> Path:
    """A sparse file of zeros."""
    with open(path, "wb") as file:
        file.truncate(size)
    return path


def empty_disks(directory: Path) -> tuple[Controller, ...]:
    """One disk per block size; a command can read 4 MiB."""
    return tuple(
        disk(serial, sparse(directory / serial, 400 << 20), mdts=10, logical_block_size=sector)
        for sector, serial in plan.EMPTY.items()
    )


def unusual_disks(directory: Path) -> tuple[Controller, ...]:
    """Empty disks with two namespaces, with zones, and with both kinds of metadata."""

    def image(name: str) -> Path:
        return sparse(directory / name, 128 << 20)

    spaces = tuple(Namespace(image=image(f"{plan.TWO_NAMESPACES}-{n}")) for n in (1, 2))
    return (
        Controller(serial=plan.TWO_NAMESPACES, namespaces=spaces),
        disk(plan.ZONED, image(plan.ZONED), zoned=True),
        disk(plan.EXTENDED, image(plan.EXTENDED), metadata=8, extended=True),
        disk(plan.SEPARATE, image(plan.SEPARATE), metadata=8),
    )


def disk(serial: str, image: Path, *, mdts: int = 7, **properties: Any) -> Controller:
    """A controller with one namespace; `properties` are those of `Namespace`."""
    return Controller(serial=serial, namespaces=(Namespace(image=image, **properties),), mdts=mdts)


@dataclass(frozen=True, slots=True)
class MappedDisk:
    """A disk with files that a guest has mapped.

    The directory holds the image of the disk, the original files and their map.
    """

    directory: Path

    @property
    def image(self) -> Path:
        """The image of the disk."""
        return self.directory / plan.MAPPED

    def controller(self, *read_errors: ReadError) -> Controller:
        """A controller with the disk and its faults."""
        return disk(plan.MAPPED, self.image, read_errors=read_errors)

    def break_sectors(self, places: dict[str, tuple[str, int]]) -> Controller:
        """A controller with the disk and bad sectors, which are listed for the guest.

        A place is a file and an offset in it. The sector of "bad" can never be read, all others
        fail once.
        """
        faults = {kind: self._fault(*place) for kind, place in places.items()}
        (self.directory / plan.FAULTS).write_text(json.dumps(faults))
        return self.controller(
            *(ReadError(fault["sector"], once=kind != "bad") for kind, fault in faults.items())
        )

    def _fault(self, name: str, offset: int) -> dict[str, Any]:
        """The sector with a byte of a file, found in the image by its content."""
        start = offset // 512 * 512
        content = (self.directory / plan.FILES / name).read_bytes()[start : start + 512]
        position = self.image.read_bytes().index(content)
        return {"name": name, "offset": start, "sector": position // 512}


def plant(root: Path) -> None:
    """JPEGs of different sizes, and files in which the bytes of every sector are unique."""
    random = np.random.default_rng(1)
    for number in range(24):
        folder = root / f"class{number % plan.CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (64 + number, 90, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:02d}.jpg")
        (folder / f"{number:02d}.bin").write_bytes(random.bytes(300_000 + number))
