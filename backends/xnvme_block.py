"""Extents as NVMe reads by libxnvme: block devices, NVMe character devices, PCI addresses."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from bmap_tools.file_system import SUPERBLOCK_BYTES

from .._types import Buffer, IntArray, PathLike
from ..catalog import Catalog
from ..devices import DeviceStatus
from ..errors import BackendUnavailable
from ..options import require_flag, require_integer
from ..reader import Batch, Reader
from .extents import device
from .extents.disks import list_disks
from .extents.map import LoadedMap, MapTree, load_map
from .extents.plan import Reads
from .extents.samples import MappedSamples, directory_of
from .xnvme import library
from .xnvme.blocks import BlockReads
from .xnvme.implementations import unavailable
from .xnvme.namespace import Namespace, open_namespace
from .xnvme.nodes import list_character_devices
from .xnvme.pci import list_controllers
from .xnvme.queue import Queue, require_depth

_PAGE = 4096  # bytes
_USUAL_TRANSFER = 1 << 20  # bytes; longer commands save nothing, and end all at once


class XnvmeBlockReader(Reader):
    """Reads the extents of a map (`python -m bmap_tools create`) by NVMe read commands.

    The commands of a batch are computed as numpy columns and kept under way in a queue. What is
    mounted is checked as by the backend `block`. Buffers are libxnvme's (xnvme_buf_alloc).
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        bmap: PathLike,
        uri: PathLike | None = None,
        io: str | None = None,
        queue_depth: int = 128,
        queues: int = 2,
        max_transfer: int | None = None,
        retries: int = 1,
        spin: bool = False,
        mem: str = "cpu",
        nsid: int = 1,
        check: bool = True,
    ) -> None:
        """Load the map and libxnvme, open the device and compare it with the map.

        Args:
            catalog: the samples; all of them must be in the map.
            bmap: the path of the map.
            uri: what holds the mapped file system: a block device; an NVMe namespace's character
                device (/dev/ng0n1); the PCI address of a controller that is bound to
                uio_pci_generic or vfio-pci (0000:00:04.0; needs libxnvme's main branch); or an
                image file. None: the block device it is mounted from, else the one the map names.
            io: libxnvme's asynchronous implementation. Of a block device or image: "io_uring" (the
                default), "libaio", "emu" or "thrpool"; of a character device "io_uring_cmd"; of a
                PCI address there is no choice.
            queue_depth: commands under way at once in a queue: a power of two from 1 to 2048; at a
                PCI address to 512.
            queues: batches read at once, each by a queue of its own: 1 to 64.
            max_transfer: bytes, the most that one command asks for; a multiple of 4096. None: what
                the device can do, up to 1 MiB.
            retries: how often a command that has failed, or came short, is submitted again.
            spin: ask for completions without a pause: takes a whole processor a queue.
            mem: "cpu", where the buffers are; "gpu" is reserved.
            nsid: which namespace, of a controller that is given by its PCI address.
            check: compare samples with the map whenever they are read, as the backend `block`.

        Raises:
            ValueError, TypeError: a wrong option, or a device that cannot be read this way.
            MapFormatError: the map cannot be believed.
            StaleMapError: the device is not the mapped one, or samples are not in the map.
            BackendUnavailable: no libxnvme; it cannot open the device here; or samples that can be
                read as files only, whose file system is not mounted.
            OSError: the map or the device cannot be opened.
        """
        _check_options(queue_depth, queues, max_transfer, retries, nsid)
        _check_memory(mem)
        require_flag("xnvme-block", "spin", spin)
        require_flag("xnvme-block", "check", check)
        self.lanes = queues
        self._queues: list[Queue] = []
        loaded, xnvme = load_map(bmap), library.load()
        self._namespace = device.open_found(
            uri,
            loaded.map,
            directory_of(catalog),
            lambda found: open_namespace(xnvme, found, io, nsid, loaded),
        )
        try:
            transfer = _transfer(max_transfer, self._namespace)
            self.alignment = max(_PAGE, self._namespace.storage.block)
            self._open_queues(queue_depth, spin=spin)
            self._require_file_system(loaded)
            self._samples = MappedSamples(
                catalog,
                loaded,
                self._namespace.storage,
                unit=self.alignment,
                max_transfer=transfer,
                retries=retries,
                check=check,
            )
        except BaseException:
            self.close()
            raise

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return unavailable()

    @classmethod
    def devices(cls) -> Iterator[DeviceStatus]:
        return chain(list_disks(), list_character_devices(), list_controllers())

    @classmethod
    def tree(cls, **options: Any) -> MapTree:
        return MapTree(load_map(options["bmap"]).map)

    def sizes(self, samples: IntArray) -> IntArray:
        return self._samples.sizes[samples]

    def read(self, batch: Batch, lane: int) -> None:
        submit = partial(self._submit, self._queues[lane], batch.buffer)
        self._samples.read(batch, submit)

    def allocate(self, nbytes: int) -> Buffer:
        return self._namespace.device.allocate(nbytes)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()
        self._namespace.device.close()

    def _open_queues(self, depth: int, *, spin: bool) -> None:
        device, patience = self._namespace.device, self._namespace.way.patience
        if depth > self._namespace.way.deepest:
            raise ValueError(
                f"xnvme-block: queue_depth must be at most {self._namespace.way.deepest} for "
                f"{self._namespace.way.what}, not {depth}"
            )
        try:
            for _ in range(self.lanes):
                self._queues.append(Queue(device, depth, spin=spin, patience=patience))
        except OSError as error:
            doing = f"cannot make {self.lanes} queues of {depth} commands (its own may be fewer)"
            raise self._namespace.refusal(error, doing) from None

    def _require_file_system(self, loaded: LoadedMap) -> None:
        """The superblock by a command, so that commands are known to read what was mapped."""
        storage = self._namespace.storage
        device.require_alignment(storage.path, storage.start, storage.block, loaded)
        head = self._namespace.read(self._queues[0], storage.start, SUPERBLOCK_BYTES)
        device.require_file_system(head, storage.path, storage.start, loaded)

    def _submit(self, queue: Queue, memory: Buffer, reads: Reads) -> BlockReads:
        commands = self._namespace.commands(queue, reads)
        try:
            queue.run(commands, memory)
        except OSError as error:
            what = error.strerror or str(error)
            raise OSError(error.errno or errno.EIO, what, self._namespace.storage.path) from None
        return commands


def _transfer(wanted: int | None, namespace: Namespace) -> int:
    most, lba_bytes = namespace.max_transfer, namespace.lba_bytes
    if wanted is None:
        return min(most, _USUAL_TRANSFER)
    if wanted > most or wanted % lba_bytes:
        raise ValueError(
            f"xnvme-block: max_transfer must be a multiple of {lba_bytes} and at most {most}, the "
            f"bytes that {namespace.storage.path} takes in one command, not {wanted}"
        )
    return wanted


def _check_options(
    queue_depth: int, queues: int, max_transfer: int | None, retries: int, nsid: int
) -> None:
    require_depth("xnvme-block", queue_depth)
    require_integer("xnvme-block", "queues", queues, range(1, 65))
    require_integer("xnvme-block", "retries", retries, range(101))
    require_integer("xnvme-block", "nsid", nsid, range(1, 0xFFFFFFFF))
    if max_transfer is not None:
        transfers = range(_PAGE, (1 << 30) + 1, _PAGE)
        require_integer("xnvme-block", "max_transfer", max_transfer, transfers)


def _check_memory(mem: str) -> None:
    if mem == "gpu":
        raise ValueError(
            "xnvme-block: mem='gpu' is reserved: nothing reads into the memory of a GPU yet; use "
            "mem='cpu'"
        )
    if mem != "cpu":
        raise ValueError(f"xnvme-block: mem must be 'cpu', not {mem!r}")
