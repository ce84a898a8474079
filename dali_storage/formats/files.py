"""Containers and their indexes: files of this machine, or objects that URLs name."""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, BinaryIO, TypeAlias, TypeVar

from ..contract.catalog import Catalog
from ..contract.errors import named
from ..contract.objects import Remote, scheme
from ..contract.waiting import take

_AT_ONCE = 32  # objects: each takes a round trip or two, and next to no time of this machine

_T = TypeVar("_T")

ReadAt: TypeAlias = Callable[[int, int], bytes]
"""The bytes from a position, at most so many."""


@dataclass(frozen=True, slots=True)
class Files:
    """Reads containers and their indexes.

    Attributes:
        remote: reads objects; None: there are only files.
    """

    remote: Remote | None = None

    def catalog(self, names: Sequence[bytes]) -> Catalog:
        """The containers, which are all files or all objects, as yet without ranges.

        Objects are asked for their sizes and versions.

        Raises:
            OSError: an object does not exist, or cannot be asked; names it.
        """
        found = Catalog.from_names(names, ())
        if not scheme(names[0]):
            return found
        sizes, versions = self._asked(names[0]).heads(names)
        return replace(found, sizes=sizes, versions=versions)

    def open(self, name: bytes) -> BinaryIO:
        """A file to be read from its start; of an object, all of it."""
        if scheme(name):
            return io.BytesIO(self._asked(name).content(name))
        return open(os.fsdecode(name), "rb")

    @contextmanager
    def reading(self, catalog: Catalog, container: int) -> Iterator[tuple[ReadAt, int]]:
        """How to read a container here and there, and its size in bytes."""
        path = catalog.file_path(container)
        if catalog.sizes is not None:
            yield partial(self._asked(path).content, path), int(catalog.sizes[container])
            return
        with named(path), open(os.fsdecode(path), "rb", buffering=0) as file:
            fd = file.fileno()
            yield lambda start, size: os.pread(fd, size, start), os.fstat(fd).st_size

    def each(self, function: Callable[..., _T], *columns: Iterable[Any]) -> list[_T]:
        """What `function` returns for each row; where there are objects, several run at a time.

        If it raises, that is the error of the first row for which it does.
        """
        rows = [*zip(*columns, strict=True)]
        if self.remote is None:
            return [function(*row) for row in rows]
        return _at_once(function, rows)

    def _asked(self, name: bytes) -> Remote:
        if self.remote is None:
            what = f"{os.fsdecode(name)!r} is an object, and this backend asks for none"
            raise ValueError(f"{what}; copy it, and give its local path")
        return self.remote


LOCAL = Files()


def _at_once(function: Callable[..., _T], rows: Sequence[tuple[Any, ...]]) -> list[_T]:
    """See `Files.each()`. After a Ctrl-C, nobody waits for what the threads still ask for."""
    waiting, done = deque(range(len(rows))), SimpleQueue[tuple[int, Any, BaseException | None]]()

    def work() -> None:
        with suppress(IndexError):
            while True:
                row = waiting.popleft()
                try:
                    done.put((row, function(*rows[row]), None))
                except BaseException as error:
                    done.put((row, None, error))

    found, errors, left = dict[int, Any](), dict[int, BaseException](), len(rows)
    try:
        for _ in range(min(_AT_ONCE, left)):
            threading.Thread(target=work, daemon=True).start()
        while left:
            row, found[row], error = take(done)
            left -= 1
            while error is not None and waiting:
                with suppress(IndexError):  # a thread was faster
                    waiting.pop()
                    left -= 1
            errors |= {} if error is None else {row: error}
    finally:
        waiting.clear()
    try:
        if errors:
            raise errors[min(errors)]
    finally:
        errors.clear()  # an error keeps the frames that it went through, and this is one
        error = None
    return [found[row] for row in range(len(rows))]
