"""Gets the kernel of the guest from Debian packages: `python -m tests.nvme_vm.packages DIRECTORY`.

It needs no root: apt keeps its lists and cache in a temporary directory, and the packages are
unpacked, not installed.
"""

import lzma
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.nvme_vm import initramfs

MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "nvme"),
    *("crc32c_generic", "ext4", "xfs"),  # the file systems request the checksum by another name
    *("loop", "brd", "uio_pci_generic", "vfio_pci", "vfio_iommu_type1"),
)
_KERNEL = "linux-image-amd64"  # the cloud kernel has no 9p


def main(directory: Path) -> None:
    """Make `vmlinux` and `initramfs` in a directory, which is created if necessary."""
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as work:
        packages = Packages(Path(work))
        kernel = packages.unpack(_kernel_package(packages.depends(_KERNEL)))
        (modules,) = kernel.glob("**/lib/modules/*")  # below /usr since Debian 13
        (busybox,) = packages.unpack("busybox-static").glob("**/bin/busybox")
        (image,) = kernel.glob("boot/vmlinuz-*")
        init = Path(__file__).with_name("init").read_bytes()
        _replace(directory / "vmlinux", vmlinux(image.read_bytes()))
        archive = initramfs.build(init, busybox.read_bytes(), modules, MODULES)
        _replace(directory / "initramfs", archive)


class Packages:
    """The packages of the apt sources of this system."""

    def __init__(self, work: Path) -> None:
        """Download their list.

        Args:
            work: an empty directory for lists and packages.
        """
        self._work = work
        for part in ("lists/partial", "cache/archives/partial"):
            (work / part).mkdir(parents=True)
        self._options = (
            *("-o", f"Dir::State::lists={work}/lists", "-o", f"Dir::Cache={work}/cache"),
            # apt would download as a user who cannot write here.
            *("-o", "APT::Sandbox::User=root"),
        )
        self._apt("apt-get", "update", "-qq")

    def depends(self, package: str) -> list[str]:
        """The names of the packages that a package depends on."""
        said = self._apt("apt-cache", "depends", "--important", package)
        return re.findall(r"^\s*Depends: (\S+)$", said, re.MULTILINE)

    def unpack(self, package: str) -> Path:
        """The directory with the files of a package."""
        self._apt("apt-get", "download", "-qq", package)
        (archive,) = self._work.glob(f"{package}_*.deb")
        directory = self._work / package
        _run("dpkg-deb", "-x", archive.name, str(directory), cwd=self._work)
        return directory

    def _apt(self, command: str, *arguments: str) -> str:
        return _run(command, *self._options, *arguments, cwd=self._work)


def _run(*command: str, cwd: Path) -> str:
    return subprocess.run(
        command, cwd=cwd, check=True, stdout=subprocess.PIPE, text=True, timeout=600
    ).stdout


def _kernel_package(names: list[str]) -> str:
    for name in names:
        if name.startswith("linux-image-"):
            return name
    raise LookupError(f"{_KERNEL} depends on no kernel, only on {names}")


def vmlinux(image: bytes) -> bytes:
    """The uncompressed kernel in a bzImage: an emulated processor takes a minute to uncompress it.

    The header is that of Documentation/arch/x86/boot.rst.

    Raises:
        ValueError: it is not a bzImage, or its compression is not supported.
    """
    if image[0x202:0x206] != b"HdrS":
        raise ValueError("this is not a bzImage")
    sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (sectors + 1) * 512 + offset
    payload = image[start : start + length]
    if payload.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(payload)  # 4 bytes follow: the size
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return _unzstd(payload[:-4])
    raise ValueError(f"unknown compression of the kernel: it begins with {payload[:6].hex()}")


def _unzstd(payload: bytes) -> bytes:
    return subprocess.run(
        ["zstd", "-dc"], input=payload, stdout=subprocess.PIPE, check=True, timeout=60
    ).stdout


def _replace(path: Path, content: bytes) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(content)
    unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
