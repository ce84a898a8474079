"""A slow file system: another directory, read only, with a latency added to each request."""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import slow_server
from .disk import MNT_DETACH, own_mounts
from .workload import NotHereError

_DEVICE = "/dev/fuse"
_FLAGS = 1 | 2 | 4  # MS_RDONLY, MS_NOSUID and MS_NODEV, sys/mount.h


@contextmanager
def mounted(source: str, directory: str, seconds: float) -> Iterator[str]:
    """Mount `source`, with that latency, on `directory/slow`; return this path.

    Raises a NotHereError where that is not possible. Only this process and its later children see
    the mount; with the last of them, it ends.
    """
    try:
        fd = os.open(_DEVICE, os.O_RDWR)
    except OSError as error:
        what = f"{_DEVICE} cannot be opened ({error.strerror})"
        raise NotHereError(f"{what}: it needs root, and modprobe fuse") from error
    place, command = (
        os.path.join(directory, "slow"),
        (sys.executable, "-m", slow_server.__name__, source),
    )
    try:
        libc = own_mounts()
        os.makedirs(place)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
        if libc.mount(b"slow", os.fsencode(place), b"fuse", _FLAGS, options.encode()):
            raise NotHereError(f"no FUSE mount: {os.strerror(ctypes.get_errno())}")
        with subprocess.Popen(
            (*command, str(seconds), str(fd)),
            stdin=subprocess.PIPE, pass_fds=[fd], cwd=Path(__file__).parents[1],
            start_new_session=True,  # Ctrl-C is for this process only
        ) as server:  # fmt: skip
            try:
                yield place
            finally:
                # Before the server ends: a leg that failed may still have files open.
                libc.umount2(os.fsencode(place), MNT_DETACH)
                assert server.stdin is not None
                server.stdin.close()
    finally:
        os.close(fd)
        with suppress(OSError):
            os.rmdir(place)
