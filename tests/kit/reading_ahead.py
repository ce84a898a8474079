"""Pools, and prefetchers as users have them: observed, with the handling of bad samples."""

from types import SimpleNamespace

from dali_storage.contract.format import Format
from dali_storage.observing.meter import Meter
from dali_storage.reading.buffers import BufferPool, make_room
from dali_storage.reading.loading import Loading
from dali_storage.reading.prefetch import Prefetcher


def pool_of(allocate, fence=None):
    """A pool that keeps every buffer."""
    return BufferPool(allocate, make_room(1, 1 << 60, 0), fence)


def reading_ahead(
    catalog,
    reader,
    order,
    depth,
    *,
    fmt=None,
    views=(),
    on_error=None,
    members=None,
    name="Reader",
    nbytes=None,
    held=0,
    **options,
):
    kind = on_error.loading(catalog, SimpleNamespace(members=members)) if on_error else Loading
    pool = BufferPool(reader.allocate, make_room(max(depth, reader.lanes), nbytes, held))
    loading = kind(catalog, reader, fmt or Format(), pool, views)
    observer = Meter(name, name)
    return Prefetcher(loading, order, observer=observer, name=name, **options)
