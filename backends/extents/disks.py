"""The disks of this machine that could hold the extents of a map."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bmap_tools import device

from ...devices import DeviceStatus
from ..linux import nodes


def list_disks(root: str = "/") -> Iterator[DeviceStatus]:
    """All whole disks that have a medium; `root` is the directory that contains `sys` and `dev`."""
    for entry in sorted((Path(root) / "sys/class/block").glob("*")):
        kind = device.disk_kind(entry.name)
        size, hidden = (nodes.sysfs_text(entry / name) for name in ("size", "hidden"))
        if kind is None or size in ("", "0") or hidden == "1":  # hidden: one of several paths
            continue
        problem = nodes.problem(Path(root) / "dev" / entry.name)
        yield DeviceStatus(f"/dev/{entry.name}", kind, problem)
