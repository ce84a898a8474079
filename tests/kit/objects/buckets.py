"""What the server serves: objects in memory, or the files below a directory as they are now."""

import errno
import hashlib
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads the bytes of an object from a start to an end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in a listing."""

    key: bytes
    size: int
    etag: str


class Memory:
    """Objects that were put there. Any key is taken, however odd."""

    def __init__(self) -> None:
        self._objects: dict[bytes, tuple[bytes, str]] = {}

    def put(self, key: bytes, data: bytes, etag: str | None = None) -> str:
        made = etag or f'"{hashlib.md5(data).hexdigest()}"'
        self._objects[key] = data, made
        return made

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[Entry, Read]]:
        if key not in self._objects:
            raise FileNotFoundError(errno.ENOENT, "no such key")
        data, etag = self._objects[key]
        yield Entry(key, len(data), etag), lambda start, end: data[start:end]

    def delete(self, key: bytes) -> None:
        self._objects.pop(key, None)

    def entries(self) -> list[Entry]:
        """All objects, in the order of their keys' bytes."""
        return [Entry(key, len(data), etag) for key, (data, etag) in sorted(self._objects.items())]


class Directory:
    """The files below a directory. A file that is written or replaced gets another ETag."""

    def __init__(self, root: bytes) -> None:
        self._root = root

    def _path(self, key: bytes) -> bytes:
        if key.startswith(b"/") or b".." in key.split(b"/"):
            raise FileNotFoundError(errno.ENOENT, "not below the directory")
        return os.path.join(self._root, key)

    def put(self, key: bytes, data: bytes, etag: str | None = None) -> str:
        os.makedirs(os.path.dirname(self._path(key)), exist_ok=True)
        with open(self._path(key), "wb") as file:
            file.write(data)
        return _etag(os.stat(self._path(key)))

    @contextmanager
    def opened(self, key: bytes) -> Iterator[tuple[Entry, Read]]:
        with open(self._path(key), "rb") as file:
            status = os.fstat(fd := file.fileno())
            entry = Entry(key, status.st_size, _etag(status))
            yield entry, lambda start, end: os.pread(fd, end - start, start)

    def delete(self, key: bytes) -> None:
        os.remove(self._path(key))

    def entries(self) -> list[Entry]:
        return sorted(self._walk(), key=lambda entry: entry.key)

    def _walk(self) -> Iterator[Entry]:
        for folder, _, files in os.walk(self._root):
            for name in files:
                path = os.path.join(folder, name)
                status = os.stat(path)
                yield Entry(os.path.relpath(path, self._root), status.st_size, _etag(status))


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


Bucket = Memory | Directory


def page(
    bucket: Bucket, prefix: bytes, delimiter: bytes, after: bytes, count: int
) -> tuple[list[Entry], list[bytes], bytes]:
    """The next `count` objects and common prefixes below `prefix` whose keys are past `after`.

    And the last one of both, if there are more.
    """
    entries = bucket.entries()
    entries = entries[bisect_right(entries, after, key=lambda entry: entry.key) :]
    found, prefixes, last = list[Entry](), list[bytes](), after
    for entry in (entry for entry in entries if entry.key.startswith(prefix)):
        cut = entry.key.find(delimiter, len(prefix)) if delimiter else -1
        common = entry.key[: cut + len(delimiter)] if cut >= 0 else b""
        if common and (common in prefixes or common == after):
            continue
        if len(found) + len(prefixes) == count:
            return found, prefixes, last
        if common:
            prefixes.append(common)
        else:
            found.append(entry)
        last = common or entry.key
    return found, prefixes, b""
