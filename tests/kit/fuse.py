"""A file system in user space: a directory once more, read-only, by the protocol of <linux/fuse.h>.

Its server is a fork of this process. It needs no package; /dev/fuse and a mount namespace do.
"""

import ctypes
import errno
import os
import stat
import struct
from pathlib import Path

_HEADER, _ANSWER = struct.Struct("<IIQQ16x"), struct.Struct("<IiQ")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT = 1, 2, 3, 14, 15, 26
_RELEASE, _OPENDIR, _READDIR, _RELEASEDIR, _BATCH_FORGET = 18, 27, 28, 29, 42
_DIRECT_IO = 1  # in the answer to open: past the page cache
_READ_ONLY = 1  # of mount(2)


def mount(source: Path, target: Path, short: int = 0) -> None:
    """Mount a directory; with `short`, a read gives at most so many bytes."""
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"t", bytes(target), b"fuse", _READ_ONLY, options):
        raise OSError(ctypes.get_errno(), "mount", "/dev/fuse")
    if os.fork() == 0:
        Server(fd, source, short).serve()
    os.close(fd)


class Server:
    def __init__(self, fd: int, root: Path, short: int) -> None:
        self.fd, self.short = fd, short
        self.paths = {1: bytes(root)}
        self.numbers = {bytes(root): 1}

    def serve(self) -> None:
        while True:
            request = os.read(self.fd, 1 << 18)
            _, operation, unique, node = _HEADER.unpack_from(request)
            if operation in (_FORGET, _BATCH_FORGET):
                continue
            try:
                answer, error = self.answer(operation, node, request[_HEADER.size :]), 0
            except OSError as failed:
                answer, error = b"", -(failed.errno or errno.EIO)
            os.write(self.fd, _ANSWER.pack(_ANSWER.size + len(answer), error, unique) + answer)

    def answer(self, operation: int, node: int, rest: bytes) -> bytes:
        path = self.paths[node] if node else b""
        if operation == _INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 8, 8, 4096, 1, 0, 0, 0)
        if operation == _LOOKUP:
            path = os.path.join(path, rest[:-1])
            attributes = self.attributes(path)
            number = self.numbers.setdefault(path, len(self.numbers) + 1)
            self.paths[number] = path
            return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + attributes
        if operation == _GETATTR:
            return bytes(16) + self.attributes(path)
        if operation in (_OPEN, _OPENDIR):
            direct = _DIRECT_IO if self.short and operation == _OPEN else 0
            return struct.pack("<QII", 0, direct, 0)
        if operation == _READ:
            offset, size = struct.unpack_from("<QI", rest, 8)
            with open(path, "rb") as file:
                return os.pread(file.fileno(), min(size, self.short or size), offset)
        if operation == _READDIR:
            start, size = struct.unpack_from("<QI", rest, 8)
            return self.entries(path, start, size)
        if operation in (_RELEASE, _RELEASEDIR):
            return b""
        raise OSError(errno.ENOSYS, "")

    def attributes(self, path: bytes) -> bytes:
        it = os.lstat(path)
        seconds, nanoseconds = divmod(it.st_mtime_ns, 10**9)
        numbers = it.st_ino, it.st_size, it.st_blocks, *[seconds] * 3, *[nanoseconds] * 3
        return struct.pack("<6Q10I", *numbers, it.st_mode, 1, 0, 0, 0, 4096, 0)

    def entries(self, path: bytes, start: int, size: int) -> bytes:
        found = b""
        for place, name in enumerate(sorted(os.listdir(path))[start:], start + 1):
            kind = stat.S_IFMT(os.lstat(os.path.join(path, name)).st_mode) >> 12
            entry = struct.pack("<QQII", place + 1, place, len(name), kind) + name
            entry += bytes(-len(entry) % 8)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found
