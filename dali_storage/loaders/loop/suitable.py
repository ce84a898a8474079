"""What a Loader needs of a pipeline."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ...dali.queries import source
from ...ranks import Shard
from ...reading.source import BatchStream


def readers_of(pipeline: Any, reader_name: str, shard: Shard) -> dict[str, BatchStream]:
    """Return the readers of a built pipeline by name, `reader_name` first.

    They are closed if the pipeline is refused.

    Raises:
        ValueError: the pipeline is unsuitable; names the argument to change.
    """
    with ExitStack() as opened:
        readers = {reader_name: source(pipeline, reader_name)}
        opened.callback(readers[reader_name].close)
        try:
            for name in pipeline.reader_meta():
                readers[name] = source(pipeline, name)
                opened.callback(readers[name].close)
        except ValueError as error:
            error.add_note(
                "a Loader moves all readers of its pipeline to another epoch, and DALI's own "
                "readers cannot be moved: use dali_storage.readers"
            )
            raise
        _check(pipeline, reader_name, shard)
        _refuse_replacing_one_of(readers)
        opened.pop_all()
    return readers


def _check(pipeline: Any, reader_name: str, shard: Shard) -> None:
    metas = pipeline.reader_meta()
    meta = metas[reader_name]
    for name, other in metas.items():
        if other != meta:
            raise ValueError(
                f"all readers in a Loader's pipeline must have the same size, shard and padding: "
                f"{reader_name!r} has {meta}, {name!r} has {other}"
            )
    here, asked = (meta["shard_id"], meta["number_of_shards"]), (shard.rank, shard.world)
    if here != asked:
        raise ValueError(
            f"reader {reader_name!r}: make() was called with shard_id={asked[0]}, num_shards="
            f"{asked[1]}, but the reader has shard_id={here[0]}, num_shards={here[1]}: pass both "
            "to the reader"
        )
    if not meta["pad_last_batch"]:
        raise ValueError(
            f"reader {reader_name!r} needs pad_last_batch=True; otherwise an epoch begins "
            "within a batch"
        )
    if not pipeline.exec_dynamic:
        raise ValueError(
            "the pipeline does not use DALI's dynamic executor, and others overwrite tensors still "
            "in use: remove exec_dynamic=False, exec_async=False, exec_pipelined=False, "
            "and separate sizes of prefetch_queue_depth"
        )
    try:
        pipeline.checkpoint()
    except RuntimeError as error:
        raise ValueError(f"make the pipeline with enable_checkpointing=True ({error})") from None


def _refuse_replacing_one_of(sources: Mapping[str, BatchStream]) -> None:
    """Refuse on_error="replace" with several readers: an image would lose its mask."""
    wishes = {name: each.opening.on_error for name, each in sources.items()}
    replacing = [name for name, wish in wishes.items() if wish is not None and wish.replace]
    if replacing and len(sources) > 1:
        raise ValueError(
            f"reader {replacing[0]!r}: on_error='replace' works on one reader, but the samples of "
            f"{', '.join(map(repr, sources))} belong together: use one readers.columns, "
            "or one container (readers.webdataset)"
        )
