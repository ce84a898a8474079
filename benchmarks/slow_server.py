"""Serves a slow file system: `python -m benchmarks.slow_server DIR SECONDS FD`.

FD is an open /dev/fuse; the end of standard input ends the program. The messages are those of
linux/fuse.h, version 7.31, so that neither libfuse nor a compiler is needed. One thread suffices:
what waits is in a queue, in the order of arrival, because all wait equally long.
"""

import errno
import os
import select
import struct
import sys
import time
from collections import deque
from contextlib import suppress

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE = 1, 2, 3, 14, 15, 18
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _INTERRUPT, _FORGET_MANY = 26, 27, 28, 29, 36, 42
_UNANSWERED = {_FORGET, _INTERRUPT, _FORGET_MANY}
_SLOW = {_LOOKUP, _GETATTR, _OPEN, _READ, _OPENDIR, _READDIR}
_IN, _OUT = struct.Struct("<2I2Q4I"), struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<4I2H2I2HI28x")
_ATTRIBUTES = struct.Struct("<6Q10I")
_FEATURES = 1 << 0 | 1 << 18 | 1 << 22  # parallel reads, parallel lookups, requests of many pages
_REQUEST_BYTES, _WRITE_BYTES, _PAGES = 8192, 4096, 256
_VALID_SECONDS = 1  # of names and attributes, as with NFS; of contents: until the next open


class Server:
    """Answers the requests about `root`. Nodes are numbered as they are met, and kept."""

    def __init__(self, root: str, seconds: float, fd: int) -> None:
        self._seconds, self._fd = seconds, fd
        self._paths = ["", root]
        self._nodes = {root: 1}
        self._listed: dict[int, bytes] = {}

    def run(self) -> None:
        """Serve until standard input ends or the file system is unmounted."""
        os.set_blocking(self._fd, False)
        waiting: deque[tuple[float, bytes]] = deque()
        while True:
            pause = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
            ready = select.select([self._fd, sys.stdin], [], [], pause)[0]
            if sys.stdin in ready:
                return
            while ready:
                try:
                    request = os.read(self._fd, _REQUEST_BYTES)
                except OSError as error:
                    if error.errno == errno.ENODEV:  # unmounted
                        return
                    break  # EAGAIN; or a request that was withdrawn
                opcode = _IN.unpack_from(request)[1]
                if opcode in _SLOW:
                    waiting.append((time.monotonic() + self._seconds, request))
                elif opcode not in _UNANSWERED:
                    self._answer(request)
            while waiting and waiting[0][0] <= time.monotonic():
                self._answer(waiting.popleft()[1])

    def _answer(self, request: bytes) -> None:
        _, opcode, unique, node, *_ = _IN.unpack_from(request)
        try:
            status, answer = 0, self._done(opcode, node, request[_IN.size :])
        except OSError as error:
            status, answer = -(error.errno or errno.EIO), b""
        with suppress(OSError):  # of a request that was withdrawn
            head = _OUT.pack(_OUT.size + len(answer), status, unique)
            os.writev(self._fd, [head, answer])

    def _done(self, opcode: int, node: int, words: bytes) -> bytes:
        path = self._paths[node] if node else ""
        if opcode == _READ:
            fd, offset, size = struct.unpack_from("<2QI", words)
            return os.pread(fd, size, offset)
        if opcode == _LOOKUP:
            return self._entry(os.path.join(path, os.fsdecode(words.rstrip(b"\0"))))
        if opcode == _GETATTR:
            return struct.pack("<Q8x", _VALID_SECONDS) + _attributes(path)
        if opcode in (_OPEN, _OPENDIR):
            return struct.pack("<Q8x", os.open(path, os.O_RDONLY))
        if opcode in (_RELEASE, _RELEASEDIR):
            (fd,) = struct.unpack_from("<Q", words)
            self._listed.pop(fd, None)
            os.close(fd)
            return b""
        if opcode == _READDIR:
            fd, offset, size = struct.unpack_from("<2QI", words)
            return self._entries(fd, offset, size)
        if opcode == _INIT:
            ahead = struct.unpack_from("<3I", words)[2]
            sizes = (256, 256, _WRITE_BYTES, 1, _PAGES, 0, 0)
            return _INIT_OUT.pack(7, 31, ahead, _FEATURES, *sizes)
        raise OSError(errno.ENOSYS, "not needed to read files")

    def _entry(self, path: str) -> bytes:
        attributes = _attributes(path)
        node = self._nodes.setdefault(path, len(self._paths))
        if node == len(self._paths):
            self._paths.append(path)
        return struct.pack("<4Q8x", node, 0, _VALID_SECONDS, _VALID_SECONDS) + attributes

    def _entries(self, fd: int, offset: int, size: int) -> bytes:
        """As many entries of a directory, from byte `offset` of all of them, as have room."""
        if fd not in self._listed:
            self._listed[fd] = b""
            with os.scandir(fd) as entries:
                for entry in entries:
                    name, kind = os.fsencode(entry.name), 4 if entry.is_dir() else 8
                    end = len(self._listed[fd]) + (24 + len(name) + 7) // 8 * 8
                    head = struct.pack("<2Q2I", entry.inode(), end, len(name), kind)
                    self._listed[fd] += (head + name).ljust(end - len(self._listed[fd]), b"\0")
        listed, end = self._listed[fd], offset
        while end < len(listed):
            (after,) = struct.unpack_from("<8xQ", listed[end : end + 16])
            if after - offset > size:
                break
            end = after
        return listed[offset:end]


def _attributes(path: str) -> bytes:
    its = os.lstat(path)
    times = [divmod(ns, 10**9) for ns in (its.st_atime_ns, its.st_mtime_ns, its.st_ctime_ns)]
    return _ATTRIBUTES.pack(
        *(its.st_ino, its.st_size, its.st_blocks, *(seconds for seconds, _ in times)),
        *(*(rest for _, rest in times), its.st_mode, its.st_nlink, its.st_uid, its.st_gid),
        *(0, its.st_blksize, 0),
    )


if __name__ == "__main__":
    with suppress(OSError):
        os.nice(-20)  # other programs must not add to the latency
    Server(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])).run()
