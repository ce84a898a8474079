"""The small text files of sysfs and procfs."""

from pathlib import Path


def sysfs_text(path: Path) -> str:
    """The stripped text of a file in sysfs or procfs; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
