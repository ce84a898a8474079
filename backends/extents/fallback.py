"""Files that have no extents in a map, such as those inside their inodes."""

import os

import numpy as np
import numpy.typing as npt

from ...contract.errors import named
from ..files.opening import open_files, open_missing, regular_sizes


def read_file(
    path: bytes, start: int, nbytes: int, file_bytes: int
) -> npt.NDArray[np.uint8] | None:
    """uint8[nbytes] from `start` of a file; None if the file has not `file_bytes` bytes now.

    Raises:
        OSError: it cannot be read, or is not a regular file; names its path.
    """
    content = np.empty(nbytes, np.uint8)
    rest = content.data
    with open_files() as fds:
        fds.append(-1)
        open_missing(fds, [path], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
        whole = int(regular_sizes(fds, [path], local=False)[0]) == file_bytes
        while whole and rest.nbytes:
            with named(path):
                got = os.preadv(fds[0], [rest], start + nbytes - rest.nbytes)
            whole, rest = got > 0, rest[got:]
    return content if whole else None
