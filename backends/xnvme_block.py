"""Samples as extents, read by NVMe commands of libxnvme: disks, namespaces, PCI addresses."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from ..contract._types import Buffer, PathLike
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus
from ..contract.errors import BackendUnavailable
from ..contract.faces import explained
from ..contract.options import Flag, Option, check_options
from ..contract.reader import Batch
from ..runtime import cuda
from .extents.map import load_map
from .extents.plan import DeviceReads
from .extents.reader import TRANSFERS, Bmap, MappedReader, Retries
from .extents.samples import Failures
from .linux.pci import address_of, list_controllers, require_controller
from .xnvme import availability, library
from .xnvme.namespace import Namespace, Nsid, open_namespace
from .xnvme.nodes import list_nodes
from .xnvme.queue import QueueDepth

if TYPE_CHECKING:
    from .gpu.dmabuf import PeerMemory

_NAME = "xnvme-block"
_DEFAULT_TRANSFER = 1 << 20  # bytes; longer commands save nothing, and complete only as a whole


class XnvmeBlockReader(MappedReader[Namespace]):
    """A reader of the extents of a map (`python -m bmap_tools create`), by NVMe read commands.

    The commands of a batch are computed as numpy columns and kept in flight in a queue. Samples are
    compared with the map as by the backend `block`. Buffers are libxnvme's (xnvme_buf_alloc), or
    memory of a GPU, written by the controller through peer-to-peer DMA.
    """

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        bmap: Bmap,
        uri: Annotated[PathLike | None, Option("a path or a PCI address")] = None,
        io: Annotated[str | None, Option("see docs/xnvme.md")] = None,
        queue_depth: QueueDepth = 128,
        queues: Annotated[int, Option(range(1, 65))] = 2,
        max_transfer: Annotated[int | None, TRANSFERS] = None,
        retries: Retries = 1,
        spin: Flag = False,
        mem: Annotated[str, Option(("cpu", "pinned", "gpu"))] = "cpu",
        gpu: Annotated[int | None, Option(range(1024))] = None,
        nsid: Nsid = 1,
        check: Flag = True,
    ) -> None:
        """Load the map and libxnvme, open the device and compare it with the map.

        Args:
            catalog: the samples; all of them must be in the map.
            bmap: the extent map.
            uri: the device with the mapped file system: a block device, the character device of an
                NVMe namespace, the PCI address of a controller, or an image file (docs/xnvme.md).
                None: the block device from which the file system is mounted, else the device named
                by the map.
            io: the asynchronous implementation of libxnvme. For a block device or image: "io_uring"
                (the default), "libaio", "emu" or "thrpool"; for a character device: "io_uring_cmd";
                for a PCI address: no choice.
            queue_depth: commands in flight at once in a queue; at a PCI address up to 512.
            queues: batches read at once, each by its own queue.
            max_transfer: bytes of the largest command. None: as many as the device supports, up to
                1 MiB.
            retries: how often a failed or short command is submitted again.
            spin: poll for completions without pauses; uses a whole processor per queue.
            mem: memory of the buffers: "cpu"; "pinned", host memory page-locked for GPUs; or "gpu",
                without a copy in host memory, which needs a PCI address (docs/gpu.md).
            gpu: the number of the GPU, for "pinned" and "gpu". None: 0.
            nsid: the number of the namespace, for a controller at a PCI address.
            check: compare samples with the map at every read, as the backend `block` does.

        Raises:
            ValueError, TypeError: an option is wrong, or the device cannot be read this way.
            MapFormatError, StaleMapError: as `BlockReader`.
            BackendUnavailable: libxnvme is missing or cannot open the device here; some samples can
                only be read as files, and their file system is not mounted; or a requirement of
                `mem` is missing, such as CuPy or a GPU.
            OSError: the map or the device cannot be opened.
        """
        if gpu is not None and mem == "cpu":
            raise ValueError(f"{_NAME}: gpu {gpu} is for mem='pinned' or 'gpu', not for 'cpu'")
        self.lanes = queues
        self._peer = self._use_gpu(mem, gpu or 0, uri) if mem != "cpu" else None
        loaded, xnvme = load_map(bmap), library.load()
        opener = partial(
            open_namespace,
            xnvme,
            io=io,
            nsid=nsid,
            queues=queues,
            queue_depth=queue_depth,
            spin=spin,
            peer=self._peer is not None,
        )

        def transfer(namespace: Namespace) -> int:
            return namespace.transfer(_NAME, max_transfer, _DEFAULT_TRANSFER)

        self._open(catalog, loaded, uri, opener, transfer, retries=retries, check=check)

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return availability.unavailable()

    @classmethod
    def devices(cls) -> Iterator[DeviceStatus]:
        gpus: Iterator[DeviceStatus] = iter(())
        with suppress(BackendUnavailable), explained():  # the family of mem="gpu" may be missing
            from .gpu.requirements import list_gpus

            gpus = list_gpus()
        return chain(list_nodes(), list_controllers(), gpus)

    def read(self, batch: Batch, lane: int) -> None:
        bus = self._peer.find(batch.buffer) if self._peer else None

        def submit(reads: DeviceReads) -> Failures:
            columns = reads.offsets, reads.memory, reads.lengths
            return self._device.submit(lane, *columns, batch.buffer, bus)

        self._samples.read(batch, lane, submit)
        if self._peer:
            self._peer.flush()

    def allocate(self, nbytes: int) -> Buffer:
        if self._peer:
            return self._peer.allocate(nbytes)
        memory = self._device.device.allocate(nbytes)
        return cuda.page_lock(memory, self.gpu) if self.gpu is not None else memory

    def _use_gpu(self, mem: str, gpu: int, uri: PathLike | None) -> "PeerMemory | None":
        """Require the GPU; return its memory for mem="gpu"."""
        self.gpu = gpu
        if mem == "pinned":
            cuda.require(gpu)
            self.pinned = True
            return None
        address = address_of(os.fsdecode(uri or ""))
        if address is None:
            what = f"mem='gpu' needs the PCI address of a controller as uri, not {uri!r}"
            raise ValueError(f"{_NAME}: {what}; or use mem='pinned'")
        require_controller(address)
        with explained():
            from .gpu.dmabuf import PeerMemory
        self.device = "gpu"
        return PeerMemory(gpu, address)
