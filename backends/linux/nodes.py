"""Device nodes in /dev, and what sysfs says about a device."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from ...errors import BackendUnavailable


def problem(node: Path) -> BackendUnavailable | None:
    """Why a device cannot be read, found by opening it read-only for a moment; None if it can."""
    pass_to_container = "pass it to the container (docker run --device)"
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except FileNotFoundError:
        return BackendUnavailable("no node in /dev", pass_to_container)
    except OSError as error:
        if not os.access(node, os.R_OK):
            remedy = "run as root, or let this user read it (setfacl -m u:$USER:r DEVICE)"
            return BackendUnavailable("no permission to read it", remedy)
        remedy = pass_to_container if error.errno == errno.EPERM else ""
        return BackendUnavailable(f"permitted, but cannot be opened: {error.strerror}", remedy)
    return None


def sysfs_text(path: Path) -> str:
    """The stripped text of a file in sysfs or procfs; empty if there is no such file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
