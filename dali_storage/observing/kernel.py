"""The kernel's view of a hanging thread, from /proc: its state, system call, file and mount.

Nothing here opens or stats a file of the user: on a hanging file system, the call would hang, too.
Entries of /proc may be missing or forbidden; their values are `UNKNOWN`.
"""

import os
import platform
import re
from dataclasses import dataclass
from typing import Final

UNKNOWN: Final = "unknown"

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "uninterruptible",
    "T": "stopped",
    "t": "traced",
    "I": "idle",
    "Z": "ended",
    "X": "ended",
}
_PAGE, _LONGEST = 4096, 4096  # of memory; of a path
_HERE = 0xFFFFFF9C  # AT_FDCWD: relative to the working directory

# Of each system call: its name, its number on x86_64 and that on aarch64. The file of a call is its
# first argument, a descriptor ("fd") or a path, or the first two, a directory and a path ("at").
_CALLS = {
    "fd": """read 0 63 write 1 64 close 3 57 fstat 5 80 ioctl 16 29 pread64 17 67 connect 42 203
             recvfrom 45 207 recvmsg 47 212 flock 73 32 fsync 74 82 getdents64 217 61 preadv 295 69
             preadv2 327 286""",
    "path": "open 2 - stat 4 - lstat 6 - access 21 - readlink 89 - statfs 137 43",
    "at": """openat 257 56 newfstatat 262 79 readlinkat 267 78 faccessat 269 48 statx 332 291
             openat2 437 437 faccessat2 439 439""",
    "": """poll 7 - futex 202 98 io_getevents 208 4 io_submit 209 2 clock_nanosleep 230 115
           epoll_wait 232 - ppoll 271 73 epoll_pwait 281 22 io_pgetevents 333 292
           io_uring_enter 426 426""",
}


def _by_number(machine: str) -> dict[int, tuple[str, str]]:
    """The name of each system call, and where its file is; of other machines, none is known."""
    column = {"x86_64": 1, "aarch64": 2}.get(machine)
    found = dict[int, tuple[str, str]]()
    for where, text in _CALLS.items() if column else ():
        words = text.split()
        for call in zip(words[::3], words[1::3], words[2::3], strict=True):
            if call[column or 0] != "-":
                found[int(call[column or 0])] = call[0], where
    return found


_BY_NUMBER = _by_number(platform.machine())


@dataclass(frozen=True, slots=True)
class ThreadState:
    """A thread at one moment.

    Attributes:
        state: the scheduler's letter and its meaning, as "D (uninterruptible)".
        wait_channel: the function of the kernel in which the thread waits; "0" if the thread runs,
            or if the kernel does not tell.
        call: the system call, a page fault, or none.
        path: the file of the system call, if there is one; for a socket and the like, the kernel's
            name, which does not begin with a slash.
    """

    state: str = UNKNOWN
    wait_channel: str = UNKNOWN
    call: str = UNKNOWN
    path: bytes | None = None


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted file system.

    Attributes:
        point: the directory on which the file system is mounted.
        kind: the type, as "nfs4".
        source: the device or server, as "server:/export".
        address: the server's address, if the kernel knows it.
    """

    point: bytes
    kind: str
    source: str
    address: str = ""

    def __str__(self) -> str:
        server = f"{self.source} ({self.address})" if self.address else self.source
        return f"{self.kind} {server} on {os.fsdecode(self.point)}"


def thread_state(thread: int, proc: str = "/proc/self") -> ThreadState:
    """The state of a thread of this process, by its native id."""
    task = f"{proc}/task/{thread}"
    letter = _content(f"{task}/stat").rpartition(b")")[2].split()[:1]
    state = letter[0].decode("ascii", "replace") if letter else ""
    call, path = _call(_content(f"{task}/syscall").split(), proc)
    return ThreadState(
        f"{state} ({_STATES.get(state, UNKNOWN)})" if state else UNKNOWN,
        _content(f"{task}/wchan").decode("ascii", "replace").strip() or UNKNOWN,
        call,
        path,
    )


def mount_of(path: bytes, mounts: bytes | None = None) -> Mounted | None:
    """The mount of an absolute path, by its name alone: symbolic links are not followed.

    `mounts` is the content of /proc/self/mountinfo. None: not known.
    """
    path, found = os.path.normpath(path), None
    for line in (_content("/proc/self/mountinfo") if mounts is None else mounts).splitlines():
        fields, _, tail = line.partition(b" - ")
        columns, about = fields.split(b" "), tail.split(b" ")
        if len(columns) < 5 or len(about) < 2:
            continue
        point = _unescaped(columns[4])
        inside = path == point or path.startswith(point.rstrip(b"/") + b"/")
        if inside and (found is None or len(point) >= len(found.point)):  # the last one is on top
            options = about[2].split(b",") if len(about) > 2 else []
            address = [each[5:] for each in options if each.startswith(b"addr=")]
            shown = [os.fsdecode(_unescaped(each)) for each in (*about[:2], *address[:1])]
            found = Mounted(point, *shown)
    return found


def _call(words: list[bytes], proc: str) -> tuple[str, bytes | None]:
    """The system call that /proc tells, and its file."""
    if not words:
        return UNKNOWN, None
    try:
        number, *arguments = (int(word, 0) for word in words)
    except ValueError:
        return "none (running)", None
    if number < 0:
        return "none (a page fault)", None
    name, where = _BY_NUMBER.get(number, (f"system call {number}", ""))
    try:
        return name, _file(where, arguments, proc)
    except (OSError, IndexError, ValueError, OverflowError):
        return name, None


def _file(where: str, arguments: list[int], proc: str) -> bytes | None:
    if where == "":
        return None
    given = _HERE if where == "path" else arguments[0] & 0xFFFFFFFF
    base = os.getcwdb() if given == _HERE else os.readlink(os.fsencode(f"{proc}/fd/{given}"))
    if where == "fd":
        return base
    return os.path.join(base, _text_at(arguments[where == "at"], proc))


def _text_at(address: int, proc: str) -> bytes:
    """The text at an address of this process, which ends with a zero.

    Each read ends with a page, because the next page may not be mapped.
    """
    found = b""
    memory = os.open(f"{proc}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(found) < _LONGEST and b"\0" not in found:
            start = address + len(found)
            part = os.pread(memory, _PAGE - start % _PAGE, start)
            if not part:
                break
            found += part
    finally:
        os.close(memory)
    return found.partition(b"\0")[0][:_LONGEST]


def _unescaped(field: bytes) -> bytes:
    r"""A field of mountinfo; a space is `\040` there."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda it: bytes([int(it[1], 8)]), field)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
