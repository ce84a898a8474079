"""Device nodes in /dev, and what sysfs says about a device."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ...errors import BackendUnavailable


def problem(node: Path) -> BackendUnavailable | None:
    """Why a device cannot be read, found by opening it read-only for a moment; None if it can."""
    path = f"/dev/{node.name}"
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except FileNotFoundError:
        return BackendUnavailable(
            "it has no node in /dev", f"pass it to the container (--device {path})"
        )
    except OSError as error:
        if not os.access(node, os.R_OK):
            return BackendUnavailable(
                "no permission to read it",
                f"run as root, or as a member of the group that may read it (ls -l {path})",
            )
        return BackendUnavailable(
            f"permitted, but cannot be opened: {error.strerror}",
            f"allow it in the container (--device {path})" if error.errno == errno.EPERM else "",
        )
    return None


def sysfs_text(path: Path) -> str:
    """The stripped text of a file in sysfs or procfs; empty if there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
