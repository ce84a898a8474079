"""What all readers have in common: the arguments beside those of the format, and opening."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeAlias

from ..contract import registry
from ..contract.catalog import Catalog, Tree
from ..contract.format import Format
from ..contract.objects import Remote, scheme
from ..contract.options import dali_flag, dali_integer
from ..contract.reader import Reader
from ..dali import DataNode, add_reader
from ..order import OrderOptions, reader_meta
from ..reading.source import BatchStream


class KnownStorage:
    """What a backend knows of its storage before it is opened."""

    def __init__(self, backend: type[Reader], options: Mapping[str, Any], remote: bool) -> None:
        """`options` are those of the backend. `remote`: the samples are objects."""
        self._backend, self._options, self._remote = backend, options, remote

    @cached_property  # until the reader is open: it may be made from the same loaded map
    def tree(self) -> Tree | None:
        """The samples that the backend knows."""
        return self._backend.tree(**self._options)

    @cached_property
    def remote(self) -> Remote | None:
        """What lists objects and reads indexes; None for files."""
        return self._backend.remote(**self._options) if self._remote else None


Find: TypeAlias = Callable[[KnownStorage], Catalog]
"""Finds the samples."""

_NOT_GIVEN = "checkpointing", "by_container"  # of the pipeline, of the reader
_ORDER = [field.name for field in fields(OrderOptions) if field.name not in _NOT_GIVEN]


@dataclass(frozen=True, slots=True)
class Prepared:
    """How a reader reads, from checked arguments.

    Attributes:
        opener: finds the samples and opens the backend.
        order: the order of the samples.
        depth: how many batches are read ahead.
    """

    opener: Callable[[], tuple[Catalog, Reader]]
    order: OrderOptions
    depth: int


def prepare(
    arguments: Mapping[str, Any], find: Find, *, names: Sequence[bytes] = (), **order: Any
) -> Prepared:
    """Check the arguments that all readers have; `order` has further ones of `OrderOptions`.

    `names` are the paths and URLs that other arguments give. If one is a URL, object-store is the
    default backend.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
    """
    device = _check(arguments["device"], arguments["skip_cached_images"])
    backend = registry.choose(arguments["backend"], names)
    options = _options(arguments["backend_options"])
    reader = registry.configure(backend, options)
    given = {name: arguments[name] for name in _ORDER if name in arguments}
    ordered = OrderOptions(**given, **order)

    def open_storage() -> tuple[Catalog, Reader]:
        storage = KnownStorage(reader, options, any(map(scheme, names)))
        catalog = find(storage)
        reader_meta(catalog.delivered, ordered)  # refuses more shards than samples
        if catalog.ranges is not None and not reader.reads_ranges:
            what = f"{registry.shown(backend)} reads whole files only, no samples in containers"
            raise ValueError(f"{what}; use one that sets `reads_ranges`, such as python-file")
        return catalog, _require_device(reader(catalog, **options), device, backend)

    return Prepared(open_storage, ordered, _depth(arguments["prefetch_queue_depth"]))


def add(arguments: Mapping[str, Any], prepared: Prepared, fmt: Format) -> tuple[DataNode, ...]:
    """Put the reader into the current pipeline; returns the nodes of its outputs.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
        OSError, BackendUnavailable: opening has failed, unless lazy_init puts it off.
    """
    pinned = arguments["pinned"]
    locked = None if pinned is None else dali_flag("pinned", pinned)

    def make(name: str) -> BatchStream:
        return BatchStream(
            name=name,
            opener=prepared.opener,
            order=prepared.order,
            depth=prepared.depth,
            pinned=locked,
            fmt=fmt,
            resume=arguments["resume"],
        )

    return add_reader(
        arguments["name"],
        make,
        fmt=fmt,
        device=arguments["device"] or "cpu",
        inherits_seed=arguments["seed"] is None,
        preserve=dali_flag("preserve", arguments["preserve"]),
        lazy=dali_flag("lazy_init", arguments["lazy_init"]),
        with_index=dali_flag("return_index", arguments["return_index"]),
    )


def _options(backend_options: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(backend_options or {}, Mapping):
        raise TypeError(f"backend_options must be a mapping, not {backend_options!r}")
    return dict(backend_options or {})


def _check(device: str | None, skip_cached_images: bool) -> str:
    if device not in (None, "cpu", "gpu"):
        raise ValueError(f"device must be 'cpu' or 'gpu', not {device!r}")
    if dali_flag("skip_cached_images", skip_cached_images):
        raise ValueError(
            "skip_cached_images must be False: the cache of DALI's image decoder is not accessible"
        )
    return device or "cpu"


def _require_device(reader: Reader, device: str, backend: str | type[Reader]) -> Reader:
    """The reader, if its memory is on this device; else it is closed."""
    if reader.device == device:
        return reader
    reader.close()
    if device == "cpu":
        raise ValueError(f"{registry.shown(backend)} reads into GPU memory: give device='gpu', too")
    raise ValueError(
        f"device='gpu': {registry.shown(backend)} with these options reads into host memory. "
        "xnvme-block and xnvme-bam read into GPU memory with backend_options={'mem': 'gpu'}; with "
        "any other, take pinned=True and data.gpu()"
    )


def _depth(prefetch_queue_depth: int | None) -> int:
    if prefetch_queue_depth is None:  # as in DALI, the default
        return 1
    depth = dali_integer("prefetch_queue_depth", prefetch_queue_depth, bits=32)
    if not 1 <= depth <= 65536:
        raise ValueError(f"prefetch_queue_depth must be from 1 to 65536, not {depth}")
    return depth
