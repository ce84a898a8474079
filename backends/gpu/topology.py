"""Where GPUs and NVMe controllers are in the PCI tree, as sysfs shows it.

Functions are directories below /sys/bus/pci/devices.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci; PCI Express Base Specification 5.0,
sections 7.6.3 and 7.7.8.
"""

import re
from pathlib import Path

from ..linux.storage import sysfs_text

_ACS = 0x000D  # the extended capability Access Control Services
_REDIRECTS = 0b11100  # of its control register: request, completion redirect, upstream forwarding
_FIRST, _MOST = 0x100, 480  # where the extended capabilities begin, and how many there can be


def bar1(gpu: Path) -> range:
    """The bus addresses by which other devices reach the memory of a GPU.

    NVIDIA calls this window BAR1. It is the second BAR up to Ampere and the third from Hopper on,
    whose first has 64 bits; and always the largest. Empty if there is no such function.
    """
    lines = sysfs_text(gpu / "resource").splitlines()[:6]
    bars = [re.match("0x0([0-9a-f]{15}) 0x0([0-9a-f]{15}) ", line) for line in lines]
    windows = [range(int(bar[1], 16), int(bar[2], 16) + 1) for bar in bars if bar]
    return max((it for it in windows if it.stop > 1), key=len, default=range(0))


def root_complex(function: Path) -> str:
    """The name of what a function is below. A Volume Management Device is one of its own."""
    return _route(function)[0]


def nearness(one: Path, other: Path) -> str:
    """What the routes of two functions share: "one switch", "one root complex" or nothing, ""."""
    shared = {*_route(one)} & {*_route(other)}
    return ("", "one root complex", "one switch")[min(len(shared), 2)]


def redirecting(one: Path, other: Path) -> list[str]:
    """The bridges between two functions that send what they exchange up to the root complex."""
    between = {*_route(one)[1:-1]} ^ {*_route(other)[1:-1]}
    return [name for name in sorted(between) if _redirects(one.parent / name)]


def _route(function: Path) -> list[str]:
    """The root complex of a function, the bridges on the way to it, and the function itself."""
    match = re.search(r".*/(pci[0-9a-f]{4,}:[0-9a-f]{2}/.*)", str(function.resolve()))
    return match[1].split("/") if match else [function.name]


def _redirects(bridge: Path) -> bool:
    """Whether ACS redirects. The kernel shows the extended capabilities to root only."""
    try:
        config, offset = (bridge / "config").read_bytes(), _FIRST
    except OSError:
        return False
    for _ in range(_MOST):
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return any(register & _REDIRECTS for register in config[offset + 6 : offset + 7])
        offset = header >> 20
    return False
