"""Why a leg cannot run here, or None."""

from __future__ import annotations

import os
import stat

from dali_storage import registry
from dali_storage.backends.xnvme import pci
from dali_storage.errors import BackendUnavailable

from .environment import available_memory_bytes
from .work import Work


def none(work: Work) -> str | None:
    """None: a leg that runs everywhere."""
    return None


def of_backend(work: Work, backend: str) -> str | None:
    """What the backend says, or that it is not installed."""
    if backend not in registry.names():
        return f"there is no backend {backend!r} in this installation"
    try:
        problem = registry.load(backend).unavailable()
    except BackendUnavailable as error:
        return str(error)
    return str(problem) if problem else None


def is_for_nvme_commands(uri: str) -> bool:
    """Whether a device can be read by NVMe commands only: a character device, a PCI address."""
    if pci.address_of(uri):
        return True
    return os.path.exists(uri) and stat.S_ISCHR(os.stat(uri).st_mode)


def of_block(work: Work) -> str | None:
    """A device that is not for `block`."""
    uri = work.settings.uri
    if uri is not None and is_for_nvme_commands(uri):
        return f"--uri {uri} is neither a block device nor an image; xnvme-gds may read it"
    return of_backend(work, "block")


def of_gds(work: Work) -> str | None:
    """Memory that `xnvme-block` cannot read into."""
    if work.settings.mem == "gpu":
        return (
            "--mem gpu is missing: the backend xnvme-block reserves it, nothing reads into the "
            "memory of a GPU yet"
        )
    return of_backend(work, "xnvme-block")


def of_xnvme_file(work: Work) -> str | None:
    """The asynchronous implementation asked for does not work here."""
    if work.settings.io is None:
        return of_backend(work, "xnvme-file")
    try:
        registry.configure("xnvme-file", {"io": work.settings.io}).open(work.catalog).close()
    except (BackendUnavailable, OSError, ValueError) as error:
        return str(error)
    return None


def of_memory(work: Work) -> str | None:
    """Data too large for the memory."""
    data, free = int(work.sizes.sum()), available_memory_bytes()
    if data > free // 2:
        return (
            f"the data ({data / 1e9:.1f} GB) would fill more than half "
            f"of the free memory ({free / 1e9:.1f} GB)"
        )
    return of_backend(work, "memory")


def of_direct(work: Work) -> str | None:
    """No O_DIRECT on the file system of the data."""
    try:
        os.close(os.open(work.catalog.path(0), os.O_RDONLY | os.O_DIRECT))
    except OSError as error:
        return f"no O_DIRECT on this file system ({error.strerror})"
    return of_backend(work, "python-file")
