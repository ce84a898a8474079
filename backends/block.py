"""Samples as extents of a block device or image, read in one kernel AIO submission per batch."""

import errno
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus
from ..contract.errors import BackendUnavailable
from ..contract.options import Flag, Lanes, Option, check_options
from ..contract.reader import Batch
from .extents.map import load_map
from .extents.plan import DeviceReads
from .extents.reader import TRANSFERS, Bmap, MappedReader
from .extents.samples import Failures
from .linux import aio
from .linux.libc import make_iovecs
from .linux.storage import DirectFile, list_disks, open_direct

_RETRIES = 1
_NAME = "block"


class BlockReader(MappedReader[DirectFile]):
    """A reader of the extents of a map, with O_DIRECT and kernel AIO.

    `python -m bmap_tools create` makes the map. The reads of a batch are computed as numpy columns
    and submitted by one system call. While the mapped file system is mounted, each sample is
    compared with the map after its bytes are read and before they are delivered, or only once if
    the file system is read-only. A sample written, replaced, moved or deleted since the mapping is
    refused.
    """

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        bmap: Bmap,
        uri: Annotated[PathLike | None, Option("a path")] = None,
        check: Flag = True,
        queue_depth: Annotated[int, Option(range(1, 4097))] = 128,
        lanes: Lanes = 2,
        max_transfer: Annotated[int, TRANSFERS] = 128 << 10,
    ) -> None:
        """Load the map, open the device and compare the two.

        Args:
            catalog: the samples; all of them must be in the map.
            bmap: the extent map.
            uri: the disk, partition, loop device or image with the mapped file system. None: the
                device from which the file system is mounted, else the device named by the map.
            check: compare samples with the map while the file system is mounted: inode, size and
                times at every read; extents, too, or when the reader is opened
                (docs/extent-maps.md). Without the check, a file changed since the mapping gives
                wrong bytes.
            queue_depth: reads in flight at once in a lane.
            lanes: batches read at once.
            max_transfer: the largest read, in bytes.

        Raises:
            ValueError, TypeError: an option is wrong.
            MapFormatError: the map is invalid or inconsistent.
            StaleMapError: the device is not the mapped one; samples are not in the map, or have
                changed since the mapping.
            BackendUnavailable: no permission to read the device, no O_DIRECT, no kernel AIO; or
                some samples can only be read as files, and their file system is not mounted.
            OSError: the map or the device cannot be opened.
        """
        self.lanes = lanes
        self._queue_depth = queue_depth
        loaded = load_map(bmap)

        def transfer(_: DirectFile) -> int:
            if reason := aio.unavailable(queue_depth):
                raise reason
            return max_transfer

        self._open(catalog, loaded, uri, open_direct, transfer, retries=_RETRIES, check=check)

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return aio.unavailable()

    @classmethod
    def devices(cls) -> Iterator[DeviceStatus]:
        return list_disks()

    def read(self, batch: Batch, lane: int) -> None:
        self._samples.read(batch, lane, self._submit)

    def _submit(self, reads: DeviceReads) -> Failures:
        iovecs = make_iovecs((reads.memory, reads.lengths))
        results = aio.read(self._queue_depth, self._device.file.fileno(), iovecs, reads.offsets)
        failed = np.flatnonzero(results != reads.lengths).tolist()
        return {index: _reason(int(results[index]), int(reads.lengths[index])) for index in failed}


def _reason(result: int, nbytes: int) -> tuple[int, str]:
    if result < 0:
        return -result, f"cannot read {nbytes} bytes"
    return errno.EIO, f"short read: {result} of {nbytes} bytes"
