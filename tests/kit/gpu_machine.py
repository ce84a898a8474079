"""A machine with a GPU and an NVMe controller: files of dev, proc and sys."""

from pathlib import Path

ROOT_COMPLEX = "pci0000:16"
SWITCH = f"{ROOT_COMPLEX}/0000:16:01.0/0000:17:00.0"
GPU, NVME = "0000:c0:00.0", "0000:1a:00.0"
ABOVE_GPU, ABOVE_NVME = "0000:18:00.0", "0000:18:01.0"
MODEL = "NVIDIA RTX 9000"
GIB = 1 << 30
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"

FUNCTIONS = "sys/bus/pci/devices"
VERSION, PARAMS = "proc/driver/nvidia/version", "proc/driver/nvidia/params"
INFORMATION = f"proc/driver/nvidia/gpus/{GPU}/information"
NVIDIA_FS, SYMBOLS, MEMORY = "proc/driver/nvidia-fs/stats", "proc/kallsyms", "proc/meminfo"
MULTIPATH, LOCKDOWN = "sys/module/nvme_core/parameters/multipath", "sys/kernel/security/lockdown"
MODULE, RESOURCE = "dev/dmabuf_import", f"{FUNCTIONS}/{GPU}/resource"
DRIVER = f"{FUNCTIONS}/{NVME}/driver"


def bar(start: int, size: int) -> str:
    return f"0x{start:016x} 0x{start + size - 1:016x} 0x000000000014220c\n"


BARS_OF_AMPERE = (
    bar(0xC000_0000, 16 << 20) + bar(0x60 << 32, 64 * GIB) + NO_BAR + bar(0x80 << 32, 32 << 20)
) + NO_BAR * 9
FILES = {
    MEMORY: "HugePages_Total:     512\nHugepagesize:       2048 kB\n",
    VERSION: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build\n",
    INFORMATION: f"Model: \t\t {MODEL}\nIRQ: 9\n",
    PARAMS: 'RegistryDwords: "RMForceStaticBar1=1;"\n',
    NVIDIA_FS: "GDS Version\n",
    SYMBOLS: "0000000000000000 d p2pdma_pgmap_ops\n",
    MULTIPATH: "N\n",
    LOCKDOWN: "[none] integrity confidentiality\n",
    MODULE: "",
}


def capabilities(*chain: tuple[int, int, int]) -> bytes:
    """A configuration space with extended capabilities: identifier, register at +6, next."""
    config, offset = bytearray(4096), 0x100
    for identifier, register, following in chain:
        config[offset : offset + 4] = (identifier | 1 << 16 | following << 20).to_bytes(4, "little")
        config[offset + 6 : offset + 8] = register.to_bytes(2, "little")
        offset = following
    return bytes(config)


class GpuMachine:
    """A machine on which everything works: a GPU and a controller below one switch."""

    def __init__(self, base: Path) -> None:
        self.base, self.functions = base, base / FUNCTIONS
        self.functions.mkdir(parents=True)
        for address, above, pci_class, vendor in (
            (ABOVE_GPU, "", "0x060400", "0x1000"),
            (ABOVE_NVME, "", "0x060400", "0x1000"),
            (GPU, f"/{ABOVE_GPU}", "0x030200", "0x10de"),
            (NVME, f"/{ABOVE_NVME}", "0x010802", "0x144d"),
            ("0000:18:02.0", "", "0x020000", "0x10de"),  # a network card of NVIDIA
            ("0000:18:03.0", "", "0x030000", "0x1002"),  # a GPU of AMD
        ):
            there = base / f"sys/devices/{SWITCH}{above}/{address}"
            there.mkdir(parents=True)
            (self.functions / address).symlink_to(there)
            config = capabilities((0x0001, 0xFFFF, 0))
            names = {"class": f"{pci_class}\n", "vendor": f"{vendor}\n", "config": config}
            self.change({f"{FUNCTIONS}/{address}/{name}": text for name, text in names.items()})
        self.change({**FILES, RESOURCE: BARS_OF_AMPERE, DRIVER: "uio_pci_generic"})

    def change(self, files: dict[str, str | bytes | None]) -> None:
        """Give files other contents; None removes one. The content of a `driver` is its name."""
        for name, content in files.items():
            path = self.base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None or name == DRIVER:
                path.unlink(missing_ok=True)
            if name == DRIVER and content is not None:
                path.symlink_to(f"../../../../bus/pci/drivers/{content}")
            elif content is not None:
                path.write_bytes(content.encode() if isinstance(content, str) else content)

    def move(self, address: str, above: str) -> None:
        """Put a function elsewhere on the bus."""
        there = self.base / f"sys/devices/{above}/{address}"
        there.parent.mkdir(parents=True, exist_ok=True)
        (self.functions / address).resolve().rename(there)
        (self.functions / address).unlink()
        (self.functions / address).symlink_to(there)
