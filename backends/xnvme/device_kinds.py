"""The kinds of devices that libxnvme reads, and the way to open each."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from ...contract.errors import BackendUnavailable
from ..linux import pci
from ..linux.storage import Storage, no_permission, open_direct
from . import nodes
from .abi import MAX_BLOCKS
from .availability import limit_reached, not_offered
from .controller import Ownership, identify
from .device import Geometry, XnvmeDevice
from .file_queue import IOS
from .library import Library

_PAGE = 4096  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Parameters by which libxnvme opens and reads one kind of device.

    Attributes:
        label: for messages.
        backend: libxnvme's backend.
        sync_impl: its synchronous implementation; None: the backend's default.
        async_impls: its asynchronous implementations, the default first; None: the backend's own.
        direct: open with O_DIRECT.
        reports_length: a completed read reports the number of bytes read.
        timeout_s: as for `Queue`.
        max_queue_depth: the most commands in flight in a queue.
        find: describes the storage at a path before opening.
        identify: completes the description of an open device, or refuses the device.
        max_transfer: computes the bytes of the largest read command.
        needs: names possible missing requirements of a device that cannot be opened. None: `io`
            itself.
        take: registers the use of a controller by its address. None: the kernel opens a path.
    """

    label: str
    backend: str = "linux"
    sync_impl: str | None
    async_impls: tuple[str | None, ...] = IOS
    direct: bool = True
    reports_length: bool = True
    timeout_s: float | None = None
    max_queue_depth: int = 2048
    find: Callable[[str], Storage]
    identify: Callable[[XnvmeDevice, Geometry, Storage], Storage]
    max_transfer: Callable[[Geometry, Storage], int]
    needs: Callable[[str], str] | None = None
    take: Callable[[str], Ownership] | None = None

    def choose_async_impl(self, io: str | None, depth: int) -> str | None:
        """The asynchronous implementation for the option `io`; refuses a wrong `io` or depth."""
        if io is not None and io not in self.async_impls:
            known = ", ".join(name for name in self.async_impls if name is not None)
            wanted = f"one of {known}" if known else "left out"
            raise ValueError(f"xnvme-block: io must be {wanted} for {self.label}, not {io!r}")
        if depth > self.max_queue_depth:
            limit = f"at most {self.max_queue_depth} for {self.label}"
            raise ValueError(f"xnvme-block: queue_depth must be {limit}, not {depth}")
        return self.async_impls[0] if io is None else io

    @contextmanager
    def explain_failures(
        self, library: Library, path: str, io: str | None, doing: str = "", hint: str = ""
    ) -> Iterator[None]:
        """Convert an OSError of libxnvme to an error for the user of the device at `path`."""
        try:
            yield
        except OSError as error:
            if isinstance(error, PermissionError) and not doing and self.take is None:
                raise no_permission(path) from None
            if self.take is None and (limit := limit_reached(error, path)):
                raise limit from None
            what = ": ".join(filter(None, [doing, error.strerror or str(error)])) + hint
            if self.needs is None:
                raise not_offered(library, str(io), f"{path}: {what}") from None
            by = f" with io {io!r}" if io else ""
            what = f"{library} cannot read {path}{by}: {what}"
            raise BackendUnavailable(what, self.needs(path)) from None


def _find_image(path: str) -> Storage:
    image = open_direct(path)
    image.close()
    return image.storage


def _agrees_with_kernel(device: XnvmeDevice, geometry: Geometry, storage: Storage) -> Storage:
    if geometry.lba_bytes != storage.alignment:
        what = f"logical blocks of {geometry.lba_bytes} bytes, the kernel of {storage.alignment}"
        raise BackendUnavailable(f"{device.library} cannot read {storage.path}: it reports {what}")
    return storage


def _ask_controller(device: XnvmeDevice, geometry: Geometry, storage: Storage) -> Storage:
    serial, wwids = identify(device)
    size, block = geometry.size, geometry.lba_bytes
    known = replace(storage, size=size, alignment=block, logical_block_size=block)
    return replace(known, serial=serial, wwids=wwids, may_have_uuid=True)


def _find_controller(address: str) -> Storage:
    pci.require_user_space_driver(address)
    return Storage(path=address, aliases=(), size=0, alignment=_PAGE)


def _needs_of_controller(address: str) -> str:
    needs = pci.needs(address)
    if needs:
        return f"it needs {'; '.join(map(str, needs))}"
    return "another process may use it, or the hugepages (HugePages_Free in /proc/meminfo)"


BLOCK_DEVICE = DeviceKind(
    label="a block device",
    sync_impl="block",
    find=nodes.block_device,
    identify=_agrees_with_kernel,
    max_transfer=lambda _, storage: nodes.max_transfer(storage.path),
)
IMAGE = DeviceKind(
    label="an image file",
    sync_impl="psync",
    find=_find_image,
    identify=lambda _, __, storage: storage,
    max_transfer=lambda geometry, _: MAX_BLOCKS * geometry.lba_bytes,
)
CHARACTER_DEVICE = DeviceKind(
    label="an NVMe character device",
    sync_impl="nvme",
    async_impls=("io_uring_cmd",),  # the others report an errno as if it were an NVMe status
    direct=False,
    reports_length=False,
    find=nodes.character_device,
    identify=_agrees_with_kernel,
    # 126 pages: a command has 127 segments, and the memory may begin in the middle of a page.
    max_transfer=lambda geometry, _: min(geometry.max_transfer, 516_096),
    needs=lambda _: "it needs Linux 5.19, and io_uring allowed (sysctl kernel.io_uring_disabled)",
)
PCI_ADDRESS = DeviceKind(
    label="a PCI address",
    backend="upcie",
    sync_impl=None,
    async_impls=(None,),
    direct=False,
    reports_length=False,
    timeout_s=30.0,  # the kernel's own for a command: nvme_core.io_timeout
    # upcie checks neither limit: beyond one page of a PRP list, and beyond the 1024 allocated
    # entries of a queue, it overwrites other memory.
    max_queue_depth=512,
    find=_find_controller,
    identify=_ask_controller,
    max_transfer=lambda geometry, _: min(geometry.max_transfer, 2 << 20),
    needs=_needs_of_controller,
    take=Ownership,
)
