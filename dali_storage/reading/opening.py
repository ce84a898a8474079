"""Finding the samples of a reader, and opening its backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from ..contract._types import IntArray
from ..contract.catalog import Catalog, Tree
from ..contract.errors import encodable
from ..contract.format import Format
from ..contract.reader import Reader
from ..contract.stages import enter
from ..order import OrderOptions
from ..order.ordering import Ordering
from .buffers import BufferPool, Room
from .loading import Loading
from .slots import Ledger, Memory, Observer

if TYPE_CHECKING:
    from ..contract.remote import Remote

Members: TypeAlias = Callable[[int], "IntArray | range"]
"""The delivered samples, ascending, from which the replacement of a sample is chosen."""


class Handling(Protocol):
    """The wishes of a user about bad samples, see `bad_samples.replacement.OnError`."""

    @property
    def replace(self) -> bool:
        """True if another sample is delivered in place of a bad one."""

    def loading(self, catalog: Catalog, ordering: Ordering) -> Callable[..., Loading]:
        """Return the subclass of `Loading` that handles the bad samples of a catalog."""


class Opened(NamedTuple):
    """An open reader: its samples, its backend, and the order of the samples."""

    catalog: Catalog
    reader: Reader
    ordering: Ordering


Find: TypeAlias = Callable[[Callable[[], Tree | None], "Remote | None"], Catalog]


def host_memory(name: str, reader: Reader, gpu: int | None) -> Callable[[Room], Memory]:
    """Return what makes the memory of batches, as the backend allocates it."""
    return lambda room: Memory(BufferPool(reader.allocate, room))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The checked arguments of a reader: how to open, and how to read.

    The last six are slots, which hold the least that works: DALI's order, errors for bad samples,
    no resumed position, no receipts, no observer and host memory.

    Attributes:
        find: finds the samples. Arguments: `Reader.tree()`, to be called only if needed; and the
            `Remote`, which lists objects and reads indexes, or None for files.
        reader: the class of the backend.
        options: the options of the backend.
        backend: the backend in messages, see `registry.shown()`.
        remote: True if the samples are objects.
        device: the memory for the samples' bytes, "cpu" or "gpu".
        order: the arguments of DALI's order, shards and seed.
        depth: the number of batches to read ahead.
        buffer_bytes: the most bytes of batches read ahead and kept; None: by the free memory.
        fmt: makes the outputs of a batch.
        names: paths and URLs by which the user named the samples, for reports.
        source_info: the option of `readers.file`.
        ordering: makes the order of a catalog's samples, from `order`.
        on_error: the handling of bad samples; None: they are errors.
        resume: moves a new `BatchStream` to a saved position; None: it begins at the first batch.
        ledger: makes what adds up the samples that reach the user.
        observe: makes the observer of a stream, from the reader's name and from its name in
            messages.
        memory: chooses the memory of batches, from the reader's name in messages, the open backend
            and the pipeline's GPU. Returns what makes the memory, within a `Room`; raises
            ValueError if the backend does not go with this GPU, or with none.
    """

    find: Find
    reader: type[Reader]
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str = ""
    remote: bool = False
    device: str = "cpu"
    order: OrderOptions = field(default_factory=OrderOptions)
    depth: int = 1
    buffer_bytes: int | None = None
    fmt: Format = field(default_factory=Format)
    names: Sequence[bytes] = ()
    source_info: bool | None = None
    ordering: Callable[[Catalog, OrderOptions], Ordering] = Ordering
    on_error: Handling | None = None
    resume: Callable[[Any], object] | None = None
    ledger: Callable[[], Ledger] = Ledger
    observe: Callable[[str, str], Observer] = lambda name, shown: Observer()
    memory: Callable[[str, Reader, int | None], Callable[[Room], Memory]] = host_memory

    @encodable()
    def open(self) -> Opened:
        """Find the samples and open the backend, which the caller closes.

        Raises:
            ValueError: there are more shards than samples, or the backend cannot read such samples,
                or not into the memory of this device.
            Exception: as `find` and the backend.
        """
        enter("finding samples", self._named)
        # What it returns lives until the reader is open: both may be made from one loaded map.
        tree = cache(partial(self.reader.tree, **self.options))
        remote = None
        if self.remote:
            from ..contract.remote import remote_of

            remote = remote_of(self.reader, **self.options)
        catalog = self.find(tree, remote)
        # Before the backend is opened: after an error here there is nothing to close.
        ordering = self.ordering(catalog, self.order)
        if catalog.ranges is not None and not self.reader.reads_ranges:
            what = f"{self.backend} reads whole files only, not samples in containers"
            raise ValueError(f"{what}; use one that sets `reads_ranges`, such as python-file")
        enter("opening the backend")
        reader = self.reader.open(catalog, remote, **self.options)
        if reader.device == self.device:
            return Opened(catalog, reader, ordering)
        reader.close()
        if self.device == "cpu":
            what = f"{self.backend} reads into GPU memory: choose host memory (mem='cpu')"
            raise ValueError(f"{what}, or also give device='gpu'")
        raise ValueError(
            f"device='gpu': {self.backend} with these options reads into host memory. "
            "xnvme-block and xnvme-bam read into GPU memory with backend_options={'mem': 'gpu'}; "
            "with others, use pinned=True and data.gpu()"
        )

    def _named(self) -> str:
        """Describe the names and the backend: the first name, and the number of others."""
        first, more = self.names[:1], len(self.names) - 1
        where = [os.fsdecode(name) + (f" and {more} more" if more else "") for name in first]
        return ", ".join([*where, self.backend])
