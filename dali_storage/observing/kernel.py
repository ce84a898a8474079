"""The kernel's view of a hanging thread, from /proc: its state, and a mount.

Nothing here opens or stats a file of the user: on a hanging file system, the call would hang, too.
Entries of /proc may be missing or forbidden; "unknown" stands for them.
"""

import os
import re
from dataclasses import dataclass

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


def thread_state(thread: int, proc: str = "/proc/self") -> str:
    """The state of a thread of this process, by its native id, and its wait channel.

    The state is the scheduler's letter and its meaning. The wait channel is the function of the
    kernel in which the thread waits; "0" if the thread runs, or if the kernel does not tell.
    """
    task = f"{proc}/task/{thread}"
    # Behind the last parenthesis: the name before it may contain spaces and parentheses.
    letter = _content(f"{task}/stat").rpartition(b")")[2].split()[:1]
    state = letter[0].decode("ascii", "replace") if letter else ""
    shown = f"{state} ({_STATES.get(state, 'unknown')})" if state else "unknown"
    channel = _content(f"{task}/wchan").decode("ascii", "replace").strip()
    return f"{shown}, wait channel {channel or 'unknown'}"


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


def _unescaped(field: bytes) -> bytes:
    r"""A field of mountinfo; a space is `\040` there."""
    return re.sub(rb"\\([0-3][0-7]{2})", lambda it: bytes([int(it[1], 8)]), field)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""
