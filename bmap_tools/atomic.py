"""Atomic replacement of files. Only regular files are replaced, also behind a link."""

import contextlib
import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO

_KINDS = {"b": "a block device", "c": "a character device", "p": "a FIFO", "s": "a socket"}


def destination(target: str) -> str:
    """Return the path of the file that `replacing(target)` writes, behind links.

    Call it early, to refuse `target` before long work.

    Raises:
        OSError: `target` is not a regular file and exists; or its name is too long, or its
            directory is missing or not writable. Has the reason and `target`.
    """
    path = os.path.realpath(target)
    if os.path.basename(target) in ("", ".", "..") or os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, "this is a directory; name a file", target)
    if not os.path.isfile(path) and (os.path.exists(target) or os.path.lexists(path)):
        kind = "a link without an end"  # or, below, an open file without a name
        with contextlib.suppress(OSError):
            kind = _KINDS.get(stat.filemode(os.stat(target).st_mode)[0], "a deleted file")
        raise FileExistsError(errno.EEXIST, f"{kind} is not replaced; name a regular file", target)
    if not os.path.isdir(directory := os.path.dirname(path)):
        raise FileNotFoundError(errno.ENOENT, f"there is no directory {directory!r}", target)
    if not os.access(directory, os.W_OK | os.X_OK, effective_ids=True):
        what = f"no permission to write to {directory!r}, or it is mounted read-only"
        raise PermissionError(errno.EACCES, what, target)
    with contextlib.suppress(FileNotFoundError), _about(target):
        os.lstat(path)  # refuses a name that is too long
    return path


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """Open a temporary file, which replaces `target` at the end of the block, unless that fails.

    Raises:
        OSError: as `destination()`; or the file cannot be written. Has `target` and, on a full
            disk, the size of the file.
    """
    path = destination(target)
    # Random, because process numbers repeat on other machines and in containers; short, because
    # the name of the target may have the maximum length.
    part = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}.part")
    try:
        with _about(target):
            raw = _Part(part, target)
        with io.BufferedWriter(raw) as file:
            yield file
            file.flush()
            with _about(target):
                os.fsync(file.fileno())  # a power cut must not leave a name without its bytes
        with _about(target):
            os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


class _Part(io.FileIO):
    def __init__(self, path: str, target: str) -> None:
        super().__init__(path, "x")
        self._target = target

    def write(self, data: Any, /) -> int:
        with _about(self._target, self.tell() + memoryview(data).nbytes):
            return super().write(data)


@contextlib.contextmanager
def _about(target: str, nbytes: int = 0) -> Iterator[None]:
    """Let an OSError name the target, not the temporary file, and the bytes that it must hold."""
    try:
        yield
    except OSError as error:
        needed = f"; the file needs at least {nbytes:,} bytes" if nbytes else ""
        raise OSError(error.errno, f"{error.strerror}{needed}", target) from None
