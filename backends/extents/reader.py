"""The common base of the readers of extents: options, opening, sizes."""

from collections.abc import Callable
from typing import Annotated, Any, Generic, TypeAlias

from ...contract._types import IntArray, PathLike
from ...contract.catalog import Catalog
from ...contract.options import Option
from ...contract.reader import Reader
from .device import Opened, open_mapped
from .map import LoadedMap, MapTree, directory_of, load_map
from .samples import MappedSamples

TRANSFERS = Option(range(4096, (1 << 30) + 1, 4096), "bytes")
Bmap: TypeAlias = Annotated[PathLike, Option("a path")]
Retries: TypeAlias = Annotated[int, Option(range(101))]


class MappedReader(Reader, Generic[Opened]):
    """A reader of the mapped samples on an open device."""

    reads_ranges = True
    _device: Opened
    _samples: MappedSamples
    _close_samples: Callable[[], None] = staticmethod(lambda: None)

    def _open(
        self,
        catalog: Catalog,
        loaded: LoadedMap,
        uri: PathLike | None,
        opener: Callable[[str], Opened],
        max_transfer: Callable[[Opened], int],
        *,
        retries: int,
        check: bool,
    ) -> None:
        """Open the device, compare it with the map, and find every sample in the map.

        `max_transfer` is called with the open device and returns the most bytes of one read.
        """
        self._device, start = open_mapped(uri, loaded, directory_of(catalog), opener)
        try:
            storage, most = self._device.storage, max_transfer(self._device)
            self._samples = MappedSamples(
                catalog,
                loaded,
                storage,
                start,
                max_transfer=most,
                retries=retries,
                check=check,
                lanes=self.lanes,
            )
            self._close_samples = self._samples.close
            self.alignment = self.unit = self._samples.alignment
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        how = f"compared with the map {self._samples.compared()}"
        return f"<{type(self).__name__} of {self._device.storage.path}: samples are {how}>"

    @classmethod
    def tree(cls, **options: Any) -> MapTree:
        return MapTree(load_map(options["bmap"]).map)

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._samples.sizes[samples]

    def close(self) -> None:
        self._close_samples()
        self._device.close()
