"""How libxnvme opens each kind of device: back ends, implementations, and what they tell."""

from __future__ import annotations

from dataclasses import dataclass

from .. import controllers
from ..errors import BackendUnavailable
from . import _xnvme_offers
from ._xnvme import Library
from ._xnvme_files import IOS

_PATIENCE = 30.0  # seconds, the kernel's own for a command: nvme_core.io_timeout
_NODE_NEEDS = (
    "io_uring_cmd needs Linux 5.19, and io_uring to be allowed (sysctl kernel.io_uring_disabled)"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How libxnvme is to open a kind of device.

    Attributes:
        what: the kind, for messages.
        be: the back end.
        sync: the synchronous implementation.
        ios: the asynchronous ones; the first is the default. None: the back end's own.
        direct: with O_DIRECT.
        tells_length: a completed read tells how many bytes have come.
        patience: seconds, as of `Queue`.
        most_bytes: that one command can ask for, whatever the device can do; None: no such limit.
        deepest: the most commands that a queue can have under way.
    """

    what: str
    be: str
    sync: str | None
    ios: tuple[str | None, ...]
    direct: bool = True
    tells_length: bool = True
    patience: float | None = None
    most_bytes: int | None = None
    deepest: int = 2048

    def choose(self, io: str | None) -> str | None:
        """The implementation that is to be used where the option is `io`."""
        if io is not None and io not in self.ios:
            names = [name for name in self.ios if name is not None] or ["left out"]
            raise ValueError(
                f"xnvme-block: io must be one of {', '.join(names)} for {self.what}, not {io!r}"
            )
        return self.ios[0] if io is None else io


BLOCK = Way("a block device", "linux", "block", IOS)
IMAGE = Way("an image file", "linux", "psync", IOS)
NODE = Way(
    "an NVMe character device",
    "linux",
    "nvme",
    ("io_uring_cmd",),  # the others tell an errno as if it were the status of NVMe
    direct=False,
    tells_length=False,
    most_bytes=516_096,  # 126 pages: a command has 127 segments, and memory may begin in a page
)
PCI = Way(
    "a PCI address",
    "upcie",
    None,
    (None,),
    direct=False,
    tells_length=False,
    patience=_PATIENCE,
    # Neither is looked after by upcie itself: beyond one page of a PRP list, and beyond the 1024
    # entries that it allocates for a queue, it writes over what comes next.
    most_bytes=2 << 20,
    deepest=512,
)


def refusal(
    library: Library, way: Way, path: str, io: str | None, error: OSError, doing: str = ""
) -> Exception:
    """What to raise where libxnvme fails with the device at `path`, at `doing` something."""
    what = f"{doing}: {error.strerror or error}" if doing else error.strerror or str(error)
    if way is not PCI and (shortage := _xnvme_offers.shortage(error, path)):
        return shortage
    if io in IOS:
        return _xnvme_offers.refusal(library, io, f"{path}: {what}")
    needs = _needs_of_controller(path) if way is PCI else _NODE_NEEDS
    return BackendUnavailable(
        f"libxnvme {library.version} ({library.path}) cannot read {path}"
        f"{f' with io {io!r}' if io else ''}: {what}; {needs}"
    )


def _needs_of_controller(address: str) -> str:
    needs = controllers.needs(address)
    if needs:
        return f"it needs {'; '.join(needs)}"
    return "another process may have it, or the hugepages (HugePages_Free in /proc/meminfo)"
