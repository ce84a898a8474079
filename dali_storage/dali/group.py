"""A reader in the graph of a pipeline.

DALI takes the batches of a Python source from a *group*: `Pipeline._run_input_callbacks` calls the
`get_batch()` of every group and then the `feed()` of every batch. `ReaderGroup` stands in for
`_ExternalSourceGroup` of nvidia/dali/external_source.py.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU
from nvidia.dali.types import DALIDataType, PipelineAPIType

from ..prefetch import LoadedBatch
from ..source import Source
from .iterators import drain
from .seeds import inherited_seed

DataNode: TypeAlias = Any

DATA, LABELS, INDEX = range(3)  # the outputs of a reader
_DTYPES = DALIDataType.UINT8, DALIDataType.INT32, DALIDataType.INT64


class ReaderGroup:
    """What DALI sees of one call of `readers.file`.

    A group belongs to the nodes that the call returns. Several pipelines may use these nodes; each
    has a source of its own, which is closed when the pipeline is dropped. The group itself stays
    until the garbage collector runs, because DALI's nodes and operators refer to each other.
    """

    parallel = False
    instances = ()  # where DALI looks for unused outputs, by ids that are not unique, to warn

    def __init__(self, name: str, make: Callable[[str], Source], inherits_seed: bool) -> None:
        self.name = name
        self.inherits_seed = inherits_seed
        self._make = make
        self._sources = weakref.WeakKeyDictionary[Pipeline, Source]()
        self._inputs = weakref.WeakKeyDictionary[Pipeline, dict[str, int]]()
        self._unclaimed: Source | None = None
        self._operators: list[Any] = []

    def open(self, pipeline: Pipeline | None) -> None:
        """Open the source for `pipeline`; without one, for the first that uses the nodes."""
        source = self._make(self.name)
        source.open()
        if pipeline is None:
            self._unclaimed = source
        else:
            self._sources[pipeline] = source

    def add_output(self, preserve: bool) -> DataNode:
        """The node of the next output, named as DALI's reader names it."""
        output = len(self._operators)
        node = fn.external_source(
            self,
            name=f"{self.name}[{output}]",
            batch=True,
            no_copy=True,
            dtype=_DTYPES[output],
            ndim=1,
            preserve=preserve,
        )
        self.source_desc = node.source._group.source_desc
        node.source._group = self
        self._operators.append(node.source)
        return node

    def source(self, pipeline: Pipeline) -> Source:
        """The source for `pipeline`."""
        source = self._sources.get(pipeline)
        if source is None:
            source, self._unclaimed = self._unclaimed or self._make(self.name), None
            self._sources[pipeline] = source
        return source

    def get_batch(self, pipeline: Pipeline, batch_size: int, epoch: int) -> Delivery:
        """Called by DALI for every batch, before it feeds any of the pipeline's sources."""
        inputs = self._inputs.get(pipeline) or self._start(pipeline)
        source = self._sources[pipeline]
        try:
            return Delivery(pipeline, inputs, source, source.batch())
        except Exception as error:
            if len(readers_of(pipeline)) < len(pipeline._input_callbacks):
                source.end(error)
            if pipeline._api_type is not PipelineAPIType.ITERATOR:
                raise
            drain(pipeline, error)
            raise StopIteration from None

    def reset_indices(self) -> None:
        """Called by `Pipeline.reset()` when another source has ended its epoch; ours goes on."""

    def __call__(self, info: object) -> Any:
        """Only here because an external source must have a callable."""
        raise RuntimeError(
            f"reader {self.name!r}: only a pipeline of DALI can take batches from "
            "dali_storage.readers.file"
        )

    def _start(self, pipeline: Pipeline) -> dict[str, int]:
        """Begin to read; returns the names of the pipeline's inputs and which output they take."""
        used = set(map(id, pipeline._ops))
        inputs = {op.name: output for output, op in enumerate(self._operators) if id(op) in used}
        readers_of(pipeline)  # refuses two of one name
        self.source(pipeline).start(
            batch_size=pipeline.max_batch_size,
            seed=inherited_seed(pipeline, self) if self.inherits_seed else None,
            checkpointing=bool(pipeline._enable_checkpointing),
            num_threads=pipeline.num_threads,
        )
        self._inputs[pipeline] = inputs
        return inputs


class Delivery:
    """A batch that DALI feeds to the pipeline when all of its sources have one."""

    def __init__(
        self, pipeline: Pipeline, inputs: dict[str, int], source: Source, batch: LoadedBatch
    ) -> None:
        # A list of tensors costs 1.2 us per sample; DALI takes 2.4 us to make one from arrays.
        # It is made here and not in a lane: on a hot page cache the lane is the bottleneck.
        data = TensorListCPU([TensorCPU(content) for content in batch.contents], contiguous=False)
        outputs = [data, TensorListCPU(source.labels(batch).reshape(-1, 1))]
        if INDEX in inputs.values():
            outputs.append(TensorListCPU(batch.samples.reshape(-1, 1)))
        feed = pipeline._pipe.SetExternalTLInput
        self._steps = [partial(feed, name, outputs[i], None, False) for name, i in inputs.items()]
        self._steps.append(partial(setattr, source, "position", source.position + 1))

    def feed(self) -> None:
        """Called by DALI.

        One bytecode instruction: a KeyboardInterrupt in between would part data and labels.
        """
        deque(map(operator.call, self._steps), 0)


def readers_of(pipeline: Pipeline) -> dict[str, ReaderGroup]:
    """Our readers in a built pipeline, by name.

    Two of one name are refused here; DALI does so only if both use the same output.
    """
    readers: dict[str, ReaderGroup] = {}
    for group in pipeline._input_callbacks or ():
        if isinstance(group, ReaderGroup):
            if group.name in readers:
                raise RuntimeError(f"two readers of this pipeline have the name {group.name!r}")
            readers[group.name] = group
    return readers
