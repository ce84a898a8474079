"""A file system that stops to answer; tests/reading/test_stalls.py runs it in a namespace.

    python -m tests.kit.stalling_mount KIND DIRECTORY PATTERN

python-file reads a file of a mount whose server answers no request of this kind. After a warning
that has the pattern, the server is killed; the reader's error is printed. No library is needed:
the server speaks the protocol of /dev/fuse (linux/fuse.h).
"""

import ctypes
import errno
import os
import re
import signal
import stat
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.kit.process import SECONDS

KINDS = {"LOOKUP": 1, "READ": 15}
REFUSED = 77
SOURCE = "nas:/export"
_GETATTR, _OPEN, _FORGET, _INIT, _INTERRUPT, _FORGETS = 3, 14, 2, 26, 36, 42
_ROOT, _FILE, _SIZE = 1, 2, 100_000


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == _ROOT else stat.S_IFREG | 0o644
    return struct.pack("6Q10I", node, _SIZE, 200, *[0] * 6, mode, *[1, 0, 0, 0, 4096, 0])


def _reply(opcode: int, node: int) -> bytes | None:
    if opcode == _INIT:
        return struct.pack("4I2H2I2H8I", 7, 31, 0, 0, 1, 1, 4096, 1, 1, *[0] * 9)
    if opcode == KINDS["LOOKUP"]:
        return struct.pack("4Q2I", _FILE, 0, 0, 0, 0, 0) + _attributes(_FILE)
    if opcode == _GETATTR:
        return struct.pack("QII", 0, 0, 0) + _attributes(node)
    return bytes(16) if opcode == _OPEN else None


def serve(device: int, stalls: int) -> None:
    """Answer requests, until one is of the kind that stalls; then wait to be killed."""
    while True:
        request = os.read(device, 1 << 20)
        _, opcode, unique, node = struct.unpack_from("IIQQ", request)
        if opcode in (stalls, _FORGET, _INTERRUPT, _FORGETS):
            continue
        body = _reply(opcode, node)
        error = -errno.ENOSYS if body is None else 0
        os.write(device, struct.pack("IiQ", 16 + len(body or b""), error, unique) + (body or b""))


def mount(target: Path) -> int:
    """Mount it; returns the descriptor that requests come from."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(SOURCE.encode(), os.fsencode(target), b"fuse.stalling", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    return device


def read(path: Path, warn: Callable[[str], object]) -> None:
    """Read the file by python-file, in batches of one sample."""
    from dali_storage.backends.python_file import PythonFileReader
    from dali_storage.observing import stalls
    from dali_storage.observing.observer import Observed
    from dali_storage.reading.opening import Opening
    from dali_storage.reading.source import BatchStream
    from dali_storage.samples.discovery import from_files

    stalls.WATCHDOG = stalls.Watchdog(warn)
    stalls._TIMES = [
        2**number for number in range(40)
    ]  # on a busy machine the first warnings are of other stages
    observe = partial(Observed, stall_after=0.05)
    opening = Opening(
        find=lambda *_: from_files([str(path)]), reader=PythonFileReader, observe=observe
    )
    source = BatchStream("R", opening)
    source.configure(batch_size=1, seed=None, checkpointing=False)
    source.start(num_threads=1, device_id=None)
    try:
        source.batch()
    finally:
        source.close()


def main(kind: str, directory: str, pattern: str) -> int:
    signal.alarm(10 * int(SECONDS))  # whatever hangs, ends
    try:
        device = mount(Path(directory))
    except OSError as error:
        print(error, file=sys.stderr)
        return REFUSED
    server = os.fork()
    if server == 0:
        serve(device, KINDS[kind])
    os.close(device)

    def warn(text: str) -> None:
        if re.search(pattern, text):
            os.kill(server, signal.SIGKILL)

    try:
        read(Path(directory, "file"), warn)
    except OSError as error:
        print(errno.errorcode[error.errno or 0])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
