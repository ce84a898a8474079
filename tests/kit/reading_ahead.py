"""Prefetchers as the readers of a user have them: observed, with the handling of bad samples."""

from types import SimpleNamespace

from dali_storage.observing.meter import Meter
from dali_storage.reading.loading import Loading
from dali_storage.reading.prefetch import Prefetcher


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
    pool=None,
    name="Reader",
    **options,
):
    kind = on_error.loading(catalog, SimpleNamespace(members=members)) if on_error else Loading
    loading = kind(catalog, reader, fmt, pool, views)
    observer = Meter(name, name)
    return Prefetcher(loading, order, depth, observer=observer, name=name, **options)
