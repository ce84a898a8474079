"""What a source needs of DALI's pipelines; the only place that knows their insides.

Written against `Pipeline._build_graph`, `_collect_ops` and `_ExternalSourceGroup` of DALI 2.4.
"""

from __future__ import annotations

import functools
import secrets
import warnings
from typing import Any

from nvidia.dali.pipeline import Pipeline

from .order.libstdcxx import seed_words
from .source import PipelineSettings, Source

_SEED_TABLE = 1024  # how many seeds a pipeline deals before it begins again

_SEED_OF_CHECKPOINTS = 0
"""For a shuffle that nobody has given a seed, in a pipeline with checkpoints. DALI would take the
time and write the state of its engine into the checkpoint; a source has no place in it, and a
restored one must find the same order."""


def settings(source: Source) -> PipelineSettings:
    """The settings of the pipeline that `source` has become a part of."""
    pipeline = _owner(source)
    sources(pipeline)  # refuses a name that is there twice
    checkpointing = bool(pipeline._enable_checkpointing)
    return PipelineSettings(
        batch_size=pipeline.max_batch_size,
        seed=_seed(pipeline, source, checkpointing),
        checkpointing=checkpointing,
        num_threads=pipeline.num_threads,
    )


def sources(pipeline: Pipeline) -> dict[str, Source]:
    """Our sources in a built `pipeline` by name.

    Those without one are named as DALI would have named the reader.

    Raises:
        ValueError: two of them have one name.
    """
    named: dict[str, Source] = {}
    for rank, group in enumerate(
        sorted(_groups(pipeline), key=lambda group: group.instances[0].id)
    ):
        # Every one of our readers before this one took two numbers, where DALI's would have taken
        # one.
        name = group.callback.name or f"__File_{group.instances[0].id - rank}"
        if name in named:
            raise ValueError(f"two readers of this pipeline have the name {name!r}")
        named[name] = group.callback
    return named


@functools.cache
def answer_reader_meta() -> None:
    """Make `reader_meta` and `epoch_size` of every pipeline know our sources too.

    Done once a process. They are methods of the class and not attributes of one pipeline, because
    an operator need not know its pipeline before that is built: when it is made outside of it, or
    in `define_graph`.
    """
    original = Pipeline.reader_meta

    @functools.wraps(original)
    def reader_meta(self: Pipeline, name: str | None = None) -> Any:
        self.build()
        ours = sources(self)
        if name in ours:
            return ours[name].meta
        return original(self, name) if name is not None else original(self) | _metas(ours)

    @functools.wraps(Pipeline.epoch_size)
    def epoch_size(self: Pipeline, name: str | None = None) -> Any:
        meta = reader_meta(self, name)
        if name is not None:
            return meta["epoch_size_padded"]
        return {reader: of_reader["epoch_size_padded"] for reader, of_reader in meta.items()}

    Pipeline.reader_meta = reader_meta
    Pipeline.epoch_size = epoch_size


def allow_unused_outputs() -> None:
    """Keep DALI from warning of an output that is not used: with fn.readers.file it does not."""
    warnings.filterwarnings(
        "ignore", r"The external source node 'dali_storage\.readers\.file", Warning
    )


def refuse_debug_mode() -> None:
    """A pipeline with debug=True runs its definition, and would open files, for every batch."""
    if getattr(Pipeline.current(), "_debug_on", False):
        raise RuntimeError("dali_storage.readers.file does not work in a pipeline with debug=True")


def _metas(ours: dict[str, Source]) -> dict[str, dict[str, int]]:
    return {name: source.meta for name, source in ours.items()}


def _groups(pipeline: Pipeline) -> list[Any]:
    return [
        group for group in pipeline._input_callbacks or () if isinstance(group.callback, Source)
    ]


def _owner(source: Source) -> Pipeline:
    for reference in list(Pipeline._pipes):
        pipeline = reference()
        if pipeline and any(group.callback is source for group in _groups(pipeline)):
            return pipeline
    raise RuntimeError(f"{source} was called by something that is not a built pipeline")


def _seed(pipeline: Pipeline, source: Source, checkpointing: bool) -> int:
    """The seed that DALI would have dealt to fn.readers.file in this place.

    A pipeline with a seed deals, in the order of its graph, one of a table to each operator that
    takes a seed and was given none (`Pipeline::AddOperatorImpl`).
    """
    if pipeline.seed is None:
        return _SEED_OF_CHECKPOINTS if checkpointing else secrets.randbits(32)
    takers = [taker for taker in map(_takes_seed, pipeline._ops) if taker is not None]
    place = list(dict.fromkeys(takers)).index(source) if source.wants_seed else 0
    return seed_words(pipeline.seed, _SEED_TABLE)[place % _SEED_TABLE]


def _takes_seed(operator: Any) -> Any:
    """Who takes the seed dealt for this node: the source behind it, itself, or (None) nobody."""
    source = getattr(operator, "_callback", None)
    if isinstance(source, Source):
        return source if source.wants_seed else None
    given = "seed" in operator._op._init_args
    return operator if operator._op.schema.HasRandomSeedArg() and not given else None
