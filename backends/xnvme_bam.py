"""Samples as extents, read by NVMe commands submitted by a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated

from ..contract._types import Buffer
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus
from ..contract.errors import BackendUnavailable
from ..contract.options import Flag, Option, check_options
from ..contract.reader import Batch
from .extents.map import load_map
from .extents.plan import DeviceReads
from .extents.reader import Bmap, MappedReader, Retries
from .extents.samples import Failures
from .gpu import layout, module
from .gpu.admin import count_granted
from .gpu.dmabuf import PeerMemory
from .gpu.queue import Controller, GpuQueue
from .gpu.registers import Registers
from .gpu.requirements import cuda_problem, list_gpus, submission_needs
from .linux import pci
from .xnvme import bus, library
from .xnvme.bus import BusMap
from .xnvme.library import Library
from .xnvme.namespace import Namespace, Nsid, open_namespace

_NAME = "xnvme-bam"
_LANES = 2  # one lane prepares its batch while the other reads
_QUEUES_OF_LIBXNVME = 2  # one for synchronous commands, and one of the namespace
_MAX_TRANSFER = 2 << 20  # bytes; a PRP list of one page holds one page more
_TRANSFERS = Option(range(layout.PAGE, _MAX_TRANSFER + 1, layout.PAGE), "bytes")
_DEPTHS = Option(range(layout.MIN_DEPTH, layout.MAX_DEPTH + 1))

TIMEOUT_S = 10.0
"""A queue is given up after so long without a completion. cudaFree() and others wait as long."""


class XnvmeBamReader(MappedReader[Namespace]):
    """A reader of a map's extents, by NVMe read commands that a GPU writes to submission queues.

    The processor only plans a batch and launches a kernel. Each warp drives a queue pair alone:
    submits commands, writes the doorbells and polls for completions. Samples are compared with the
    map as by the backend `block`.
    """

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        bmap: Bmap,
        uri: Annotated[str, Option("a PCI address")],
        mem: Annotated[str, Option(("cpu", "gpu"))] = "cpu",
        queues: Annotated[int, Option(range(1, 65))] = 4,
        queue_depth: Annotated[int, _DEPTHS] = 128,
        max_transfer: Annotated[int | None, _TRANSFERS] = None,
        retries: Retries = 1,
        gpu: Annotated[int, Option(range(1024))] = 0,
        nsid: Nsid = 1,
        check: Flag = True,
    ) -> None:
        """Load the map and libxnvme, compile the kernel, open the controller, create the queues.

        Args:
            catalog: the samples; all of them must be in the map.
            bmap: the extent map.
            uri: an NVMe controller (0000:3b:00.0) bound to uio_pci_generic.
            mem: memory of the buffers: "cpu", page-locked memory of the host; or "gpu".
            queues: queue pairs of the controller. Two batches are read at once, each by half of
                the queue pairs; with one queue pair, one batch.
            queue_depth: entries of a queue, one more than its commands in flight.
            max_transfer: bytes of the largest command. None: as many as the controller supports,
                up to 2 MiB.
            retries: how often a failed command is submitted again.
            gpu: the number of the GPU that submits the commands.
            nsid: the number of the namespace.
            check: compare samples with the map at every read, as the backend `block` does.

        Raises:
            ValueError, TypeError: an option is wrong, or not granted by the controller.
            MapFormatError, StaleMapError: as `BlockReader`.
            BackendUnavailable: no CuPy, no such GPU, no libxnvme of the main branch; or this
                machine does not let the GPU use the controller.
            OSError: the map or the controller cannot be opened.
        """
        address = _address(uri)
        loaded = load_map(bmap)
        self._launcher, xnvme = module.Launcher(gpu), _library()
        require_access(address)
        self._peer = PeerMemory(gpu, address) if mem == "gpu" else None
        self.device, self.pinned = mem, mem == "cpu"
        self.gpu = gpu if mem == "gpu" else None  # any pipeline accepts host memory
        self.lanes = min(queues, _LANES)
        self._queues: list[GpuQueue] = []
        self._buses = BusMap()
        opener = partial(
            open_namespace, xnvme, io=None, nsid=nsid, queues=1, queue_depth=2, spin=False
        )

        def prepare(namespace: Namespace) -> int:
            with _named(address):
                self._open_queues(queues, queue_depth)
            return namespace.transfer(_NAME, max_transfer, _MAX_TRANSFER)

        self._open(catalog, loaded, address, opener, prepare, retries=retries, check=check)

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        try:
            _library()
        except BackendUnavailable as reason:
            return reason.with_traceback(None)
        return cuda_problem()

    @classmethod
    def devices(cls) -> Iterator[DeviceStatus]:
        return list_gpus(submits=True)

    def read(self, batch: Batch, lane: int) -> None:
        arena = (self._peer or self._buses).find(batch.buffer)

        def submit(reads: DeviceReads) -> Failures:
            with _named(self._device.storage.path):
                columns = reads.offsets, reads.memory, reads.lengths
                return self._queues[lane].read(*columns, arena, batch.buffer)

        self._samples.read(batch, lane, submit)
        if self._peer:
            self._peer.flush()

    def allocate(self, nbytes: int) -> Buffer:
        if self._peer:
            return self._peer.allocate(nbytes)
        memory, found = bus.allocate(self._device.device, nbytes)
        self._launcher.map_memory(memory)
        self._buses.add(memory, found)
        return memory

    def close(self) -> None:
        try:
            self._close()
        finally:  # continues after a Ctrl-C
            self._close()

    def _close(self) -> None:
        for queue in self._queues:
            queue.close()
        super().close()

    def _open_queues(self, queues: int, depth: int) -> None:
        device, address = self._device.device, self._device.storage.path
        granted = count_granted(device)
        registers = Registers(address, granted)
        controller = Controller(
            device=device,
            registers=registers,
            doorbells=self._launcher.map_registers(registers.doorbells),
            granted=granted,
            launcher=self._launcher,
            peer=self._peer,
            lba_bytes=self._device.lba_bytes,
            timeout_s=TIMEOUT_S,
        )
        _require_granted(controller, address, queues, depth)
        pairs = [len(range(lane, queues, self.lanes)) for lane in range(self.lanes)]
        self._queues += [GpuQueue(controller, count, depth) for count in pairs]
        for queue in self._queues:
            queue.create()


@contextmanager
def _named(address: str) -> Iterator[None]:
    """Add the address of the controller to every OSError of the block without a file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or address) from None


def require_access(address: str) -> None:
    """Refuse a controller with registers or memory accesses unusable by a GPU."""
    pci.require_controller(address)
    if problem := pci.problem_of(submission_needs(address)):
        what = f"a GPU cannot submit commands to {address}: it {problem.reason}"
        raise BackendUnavailable(what, problem.remedy)


def _address(uri: str) -> str:
    if not isinstance(uri, str) or (address := pci.address_of(uri)) is None:
        hint = "other devices are read by xnvme-block or block"
        what = f"uri must be the PCI address of an NVMe controller (0000:3b:00.0), not {uri!r}"
        raise ValueError(f"{_NAME}: {what}; {hint}")
    return address


def _library() -> Library:
    xnvme = library.load()
    if xnvme.version != "main":
        what = f"{xnvme} cannot read from a PCI address"
        raise BackendUnavailable(what, "use a libxnvme of the main branch (with upcie)")
    return xnvme


def _require_granted(controller: Controller, address: str, queues: int, depth: int) -> None:
    granted, most = controller.granted, controller.registers.max_depth
    if depth > most:
        what = f"queue_depth must be at most {most}, the entries of a queue of {address}"
        raise ValueError(f"{_NAME}: {what}, not {depth}")
    most = granted - _QUEUES_OF_LIBXNVME
    what = f"{address} grants {granted} queue pairs, of which libxnvme uses {_QUEUES_OF_LIBXNVME}"
    if most < 1:
        raise BackendUnavailable(what, "use xnvme-block")
    if queues > most:
        raise ValueError(f"{_NAME}: queues must be at most {most}, not {queues}: {what}")
