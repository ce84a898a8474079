"""Finding the samples of a reader, and opening its backend."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeAlias

from ..contract.activity import enter, note
from ..contract.catalog import Catalog, Tree
from ..contract.errors import encodable
from ..contract.format import Format
from ..contract.objects import Remote
from ..contract.reader import Reader
from ..order import OrderOptions, reader_meta
from ..order.dealing import require_share
from ..order.sampling.stream import SampleStream
from .replacement import OnError

Find: TypeAlias = Callable[[Callable[[], Tree | None], Remote | None], Catalog]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The checked arguments of a reader: how to open, and how to read.

    Attributes:
        find: finds the samples. Arguments: `Reader.tree()`, to be called only if needed; and the
            `Remote`, which lists objects and reads indexes, or None for files.
        reader: the class of the backend.
        options: the options of the backend.
        backend: the backend in messages, see `registry.shown()`.
        remote: True if the samples are objects.
        device: the memory for the samples' bytes, "cpu" or "gpu".
        order: the order of the samples.
        depth: the number of batches to read ahead.
        pinned: the option of `readers.file`.
        fmt: makes the outputs of a batch.
        resume: a state to resume from; see `BatchStream.resume()`.
        on_error: the handling of bad samples.
        stall_after: the option of `readers.file`.
        names: paths and URLs by which the user named the samples, for reports.
        source_info: the option of `readers.file`.
        stream: makes the stream of samples to be dealt out to the ranks; `order` then has the
            shards and the seed. None: the order is DALI's.
    """

    find: Find
    reader: type[Reader]
    options: Mapping[str, Any] = field(default_factory=dict)
    backend: str = ""
    remote: bool = False
    device: str = "cpu"
    order: OrderOptions = field(default_factory=OrderOptions)
    depth: int = 1
    pinned: bool | None = None
    fmt: Format = field(default_factory=Format)
    resume: Mapping[str, Any] | None = None
    on_error: OnError = field(default_factory=OnError)
    stall_after: float | None = None
    names: Sequence[bytes] = ()
    source_info: bool | None = None
    stream: Callable[[Catalog], SampleStream] | None = None

    @encodable()
    def open(self) -> tuple[Catalog, Reader, SampleStream | None]:
        """Find the samples and open the backend, which the caller closes; make the stream.

        Raises:
            ValueError: there are more shards than samples, or the backend cannot read such samples,
                or not into the memory of this device.
            Exception: as `find` and the backend.
        """
        note(self._named)
        enter("finding samples")
        # What it returns lives until the reader is open: both may be made from one loaded map.
        tree = cache(partial(self.reader.tree, **self.options))
        remote = self.reader.remote(**self.options) if self.remote else None
        catalog = self.find(tree, remote)
        stream = self.stream(catalog) if self.stream else None
        if stream is None:
            reader_meta(catalog.delivered, self.order)  # refuses more shards than samples
        else:
            require_share(stream, self.order)
        if catalog.ranges is not None and not self.reader.reads_ranges:
            what = f"{self.backend} reads whole files only, not samples in containers"
            raise ValueError(f"{what}; use one that sets `reads_ranges`, such as python-file")
        enter("opening the backend")
        reader = self.reader.open(catalog, remote, **self.options)
        if reader.device == self.device:
            return catalog, reader, stream
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
