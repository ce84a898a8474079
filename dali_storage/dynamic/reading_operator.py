"""The replacement for DALI's operator in our readers of dynamic mode."""

import json
import threading
from typing import Any

from nvidia.dali.tensors import TensorListCPU

from ..dali.group import data_list, number_list
from ..dali.source_info import Names
from ..reading.loading import LoadedBatch
from ..reading.opening import Opening
from ..reading.source import BatchStream
from ..saving import positions


class LockedStream(BatchStream):
    """The one source of a reader; the pipeline of a captured loop uses the same object.

    A stream may be closed while another thread waits for a batch, as with torchdata's Prefetcher.
    """

    _remedy = "make another reader"

    def __init__(self, name: str, opening: Opening) -> None:
        super().__init__(name, opening)
        self._lock = threading.RLock()

    def start(self, **settings: Any) -> None:
        """Begin to read; do nothing in a second call."""
        with self._lock:
            if self._prefetcher is None:
                super().start(**settings)

    def read_ahead(self) -> None:
        """See BatchStream."""
        with self._lock:
            super().read_ahead()

    def batch(self) -> LoadedBatch:
        """See BatchStream."""
        with self._lock:
            return super().batch()

    def __repr__(self) -> str:
        return f"dali_storage.dynamic.readers.{self.fmt.schema}(name={self._name!r})"


class ReadingOperator:
    """The methods of DALI's operator that a reader uses, as in nvidia.dali.backend_impl."""

    def __init__(self, source: BatchStream, batch_size: int, names: Names) -> None:
        self._source, self._batch_size, self._names = source, batch_size, names

    def GetReaderMeta(self) -> dict[str, int]:  # noqa: N802
        """The result of `get_metadata()`."""
        return self._source.meta

    def SetupAndRun(self, workspace: Any, batch_size: int | None = None) -> None:  # noqa: N802
        """Put the next batch into the workspace."""
        if batch_size not in (None, self._batch_size):
            raise ValueError(
                f"{self._source}: batch_size must stay {self._batch_size}, not {batch_size}; use "
                "another reader"
            )
        batch, outputs = self._source.batch(), self._source.fmt.outputs
        for number, contents in enumerate(batch.outputs):
            tensors, layout = data_list(self._source.memory, contents)[0], outputs[number].layout
            tensors = TensorListCPU(tensors, layout) if layout else tensors
            if number in self._names.outputs:
                self._names.put(tensors, batch.samples, number)
            workspace.AddOutput(tensors)
        if self._source.fmt.labels:
            workspace.AddOutput(number_list(self._source.labels(batch)))
        self._source.position.seek(self._source.position.next + 1)

    def SaveCheckpoint(self, stream: object = None) -> bytes:  # noqa: N802
        """The result of `get_state()`, before conversion to text."""
        return json.dumps(positions.checkpoint(self._source, pending=0)).encode()
