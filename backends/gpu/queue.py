"""A queue of read commands submitted by a GPU, through launches of the kernel of submit.cu."""

import errno
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray, address_of
from ..xnvme.abi import SCT_AND_SC
from ..xnvme.bus import BusMemory
from ..xnvme.device import XnvmeDevice
from ..xnvme.status import describe_status
from . import layout
from .dmabuf import PeerMemory
from .queue_pairs import COMPLETION_BYTES, QueuePairs
from .registers import Registers

_SHARES = 4  # a queue pair claims its part of a batch in so many turns, or more

_leaked_on_purpose: list[Any] = []  # memory that a controller may still write to


@dataclass(frozen=True, slots=True, eq=False)
class Controller:
    """A controller driven by a GPU.

    Attributes:
        device: open at the PCI address.
        registers: the mapped registers.
        doorbells: the address of the doorbells for the kernel.
        granted: the number of I/O queue pairs granted by the controller.
        launcher: launches the kernel, as `gpu.module.Launcher`.
        peer: allocates memory for completion queues; None: in host memory.
        lba_bytes: bytes of a logical block.
        timeout_s: seconds without any completion after which a queue pair is given up.
    """

    device: XnvmeDevice
    registers: Registers
    doorbells: int
    granted: int
    launcher: Any
    peer: PeerMemory | None
    lba_bytes: int
    timeout_s: float


class GpuQueue:
    """Some queue pairs of a controller, for one thread at a time. `close()` deletes them.

    If the controller does not complete commands, the queue pairs are deleted, which ends its writes
    to the memory. The next read creates new queue pairs.
    """

    def __init__(self, controller: Controller, pairs: int, depth: int) -> None:
        """Prepare for `pairs` queue pairs of `depth` entries; none is created yet."""
        self._controller: Controller | None = controller  # None: closed
        self._count, self._depth = pairs, depth
        self._process = os.getpid()
        self._memory: list[object] = []  # memory that the controller may write to
        self._pairs: QueuePairs | None = None
        self._launches: Any = None

    def read(
        self,
        offsets: IntArray,
        memory: IntArray,
        lengths: IntArray,
        arena: BusMemory,
        owner: object,
    ) -> dict[int, tuple[int, str]]:
        """Read ranges of the namespace; return the errno and the reason for each failed one.

        Args:
            offsets: int64[n], bytes into the namespace; like `lengths`, multiples of a block.
            memory: int64[n], addresses in the arena; multiples of 4.
            lengths: int64[n], bytes, at most 2 MiB.
            arena: the destination memory.
            owner: the owner of the arena; leaked on purpose if the controller stops answering.

        Raises:
            OSError: the controller does not answer or has another driver, or the GPU has failed.
            ValueError: the queue is closed.
            RuntimeError: the queue was created before this process was forked.
        """
        controller = self._usable()
        if not offsets.size:
            return {}
        if self._launches is None:
            self.create()
        batch, columns = self._batch(controller, offsets, memory, lengths, arena)
        self._memory = [owner]
        try:
            self._launches.start(batch, **columns)
            statuses = self._launches.wait()
            pairs = self._launches.pairs
            for fault in pairs["fault"][pairs["fault"] != layout.NO_FAULT].tolist():
                number = errno.ETIMEDOUT if fault == layout.TIMED_OUT else errno.EIO
                left = f"{pairs['in_flight'].sum()} commands are in flight"
                raise OSError(number, f"{layout.FAULTS[fault]}; {left}")
            self._memory = []
        except BaseException:
            self._give_up()
            raise
        failures = {}
        for index in np.flatnonzero(statuses & SCT_AND_SC).tolist():
            number, what = describe_status(int(statuses[index] & SCT_AND_SC), "upcie")
            failures[index] = number, f"{what}: cannot read {lengths[index]} bytes"
        return failures

    def close(self) -> None:
        """Delete the queue pairs. Closing twice is fine. Does nothing in a forked process."""
        if os.getpid() != self._process:
            return
        self._give_up()
        self._delete()
        self._controller = None  # its registers need not be mapped any more

    def create(self) -> None:
        """Create the queue pairs; raises as `QueuePairs.create()` and `read()`."""
        controller, count = self._usable(), self._count
        device, launcher = controller.device, controller.launcher
        completions = None
        if controller.peer is not None:
            buffer = controller.peer.allocate(count * COMPLETION_BYTES)
            completions = buffer, controller.peer.find(buffer)
        self._pairs = made = QueuePairs(
            device, count, self._depth, granted=controller.granted, completions=completions
        )
        try:
            made.create()
            rows = layout.queue_pairs(count, self._depth)
            moved = launcher.map_memory(made.memory) - address_of(made.memory)
            rows["submission_queue"] = made.submission_queues + moved
            rows["completion_queue"] = made.completion_queues + moved * (completions is None)
            rows["prp_lists"] = made.prp_lists + moved
            doorbells = np.array([controller.registers.offsets(qid) for qid in made.qids])
            rows["submission_doorbell"] = controller.doorbells + doorbells[:, 0]
            rows["completion_doorbell"] = controller.doorbells + doorbells[:, 1]
            self._launches = launcher.launches(rows, made.prp_list_bus)
        except BaseException:
            self._delete()
            raise

    def _batch(
        self,
        controller: Controller,
        offsets: IntArray,
        memory: IntArray,
        lengths: IntArray,
        arena: BusMemory,
    ) -> tuple[npt.NDArray[np.void], dict[str, npt.NDArray[Any]]]:
        """Make a BATCH and its columns."""
        count = offsets.size
        shift = controller.lba_bytes.bit_length() - 1
        blocks, places = lengths >> shift, memory - arena.origin
        end = arena.address + arena.nbytes - arena.origin
        layout.check_reads(blocks, places, block_shift=shift, arena_bytes=end)
        batch = layout.batch(
            count=count,
            page_shift=arena.page_shift,
            block_shift=shift,
            nsid=controller.device.nsid,
            share=min(max(count // (self._count * _SHARES), 1), layout.LANES),
            patience_s=controller.timeout_s,
        )
        columns: dict[str, npt.NDArray[Any]] = {
            "slba": (offsets >> shift).astype(np.uint64),
            "blocks": blocks.astype(np.uint32),
            "offset": places.astype(np.uint64),
            "page_bus": arena.pages,
        }
        return batch, columns

    def _usable(self) -> Controller:
        """The controller, if usable."""
        if self._controller is None:
            raise ValueError("the queue is closed")
        if os.getpid() != self._process:
            raise RuntimeError("an xnvme-bam reader cannot be used after a fork: open a new one")
        device = self._controller.device
        if device.is_gone:
            taken = "another driver has taken over the controller"
            what = "the controller has stopped answering" if device.lost else taken
            raise OSError(errno.ENODEV, what)
        return self._controller

    def _give_up(self) -> None:
        """Stop the kernel, and delete the queue pairs if no longer usable."""
        if not self._memory:
            return
        try:
            self._launches.stop()
            is_sound = not self._launches.pairs["fault"].any()
        except Exception:  # CUDA has failed, and with it the kernel
            is_sound = False
        if not is_sound and not self._delete():
            _leaked_on_purpose.append(self._memory)
        self._memory = []

    def _delete(self) -> bool:
        """Delete the queue pairs; return whether the controller no longer uses any memory.

        After a Ctrl-C in `close()`, another call continues.
        """
        self._launches = None
        deleted = self._pairs is None or self._pairs.close()
        self._pairs = None
        return deleted
