"""Reads of a device's bytes as NVMe commands of libxnvme, each of them checked."""

from __future__ import annotations

import errno

import numpy as np
import numpy.typing as npt

from ..errors import os_error
from ..reader import IntArray
from ._extents import Reads
from ._xnvme_blocks import BlockReads
from ._xnvme_queue import Queue
from ._xnvme_status import explain


class ExtentReads(BlockReads):
    """The commands for some reads; what fails or comes short is submitted again."""

    def __init__(
        self, queue: Queue, reads: Reads, lba_bytes: int, *, retries: int, tells_length: bool
    ) -> None:
        """Begin nothing yet.

        Args:
            queue: what will run them.
            reads: positions and lengths are multiples of `lba_bytes`.
            lba_bytes: of a logical block.
            retries: how often a command that has failed is submitted again.
            tells_length: successful commands tell how many bytes have come.
        """
        slba, nlb = reads.positions // lba_bytes, reads.lengths // lba_bytes
        super().__init__(queue, slba, nlb, reads.memory, lba_bytes, retries=retries)
        self._lengths = reads.lengths if tells_length else None
        self._io = queue.device.io

    def finish(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        again = super().finish(numbers, results, statuses)
        if self._lengths is None or (results == self._lengths[numbers]).all():
            return again
        short = (statuses == 0) & (results != self._lengths[numbers])
        more = numbers[short & (self._tries_left[numbers] > 0)]
        self._tries_left[more] -= 1
        short_again: list[int] = more.tolist()
        return again + short_again

    def failed(self) -> npt.NDArray[np.bool_]:
        """Which of them have failed, when all are done: bool[n]."""
        failed: npt.NDArray[np.bool_] = (self.statuses != 0) | (self.errors != 0)
        if self._lengths is not None:
            failed |= self.results != self._lengths
        return failed

    def reason(self, number: int) -> tuple[int, str]:
        """Why one has failed: an errno, and what happened."""
        if self.errors[number]:
            return int(self.errors[number]), "cannot submit a read"
        if self.statuses[number]:
            code, text = explain(int(self.statuses[number]), self._io)
            return code, f"cannot read{text.replace(': ', ', ', 1)}"
        return errno.EIO, f"only {self.results[number]} bytes came of"


def read_bytes(
    queue: Queue, position: int, nbytes: int, lba_bytes: int, path: str, *, tells_length: bool
) -> bytes:
    """Some bytes of a device.

    Args:
        queue: of the device, nothing under way.
        position: bytes, a multiple of `lba_bytes`, as is `nbytes`.
        nbytes: how many; no more than one command may ask for.
        lba_bytes: of a logical block.
        path: of the device, for errors.
        tells_length: as of ExtentReads.

    Raises:
        OSError: they cannot be read; names `path`.
    """
    memory = queue.device.allocate(nbytes)
    columns = np.array([[position], [memory.ctypes.data], [nbytes]], np.int64)
    reads = ExtentReads(queue, Reads(*columns), lba_bytes, retries=1, tells_length=tells_length)
    queue.run(reads, memory)
    if reads.failed()[0]:
        number, what = reads.reason(0)
        hint = f": {what}, {nbytes} bytes at LBA {position // lba_bytes}"
        raise os_error(number, path.encode(errors="surrogateescape"), hint)
    return memory[:nbytes].tobytes()
