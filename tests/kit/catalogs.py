"""What catalogs of samples have, to compare them."""

from typing import Any

from dali_storage.contract.catalog import Catalog


def columns_of(catalog: Catalog) -> list[Any]:
    """Root, names, offsets, labels, sizes and versions, with their types."""
    columns = catalog.offsets, catalog.labels, catalog.sizes, catalog.versions
    listed = [None if each is None else (each.dtype.str, each.tolist()) for each in columns]
    return [catalog.root, bytes(catalog.names), *listed]
