"""Objects of S3, Google Cloud Storage, Azure and web servers."""

from .._types import IntArray
from ..catalog import Catalog
from ..reader import Batch, Reader


class ObjectStoreReader(Reader):
    """Reads whole objects, or ranges of them."""

    schemes = ("s3", "gs", "az", "http", "https")
    reads_ranges = True

    def __init__(self, catalog: Catalog) -> None:
        raise NotImplementedError

    def sizes(self, samples: IntArray) -> IntArray:
        raise NotImplementedError

    def read(self, batch: Batch, lane: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
