"""DALI's iterators over a pipeline with a reader resumed in mid-epoch.

An iterator counts the samples of an epoch (`_counter`) up to the size of the largest shard
(`_size`), and knows the sizes of all shards (nvidia/dali/plugin/base_iterator.py). The rest of an
epoch is counted as the end of an epoch of the usual `_size`, with shards of matching sizes until
the next epoch.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from nvidia.dali.plugin.base_iterator import LastBatchPolicy, _DaliBaseIterator

from ..order.shards import rounds
from ..reading.source import BatchStream
from .group import readers_of
from .iterators import then

_SIZES = "_shard_sizes_per_gpu", "_shard_sizes_per_gpu_initial"


@functools.cache
def extend_iterators_to_resume() -> None:
    """Make DALI's iterators begin at a reader's resumed position; done once per process."""
    base = _DaliBaseIterator
    base._extract_from_reader_and_validate = then(base._extract_from_reader_and_validate, _begin)
    base.reset = then(base.reset, _leave_rest)


def _begin(iterator: Any) -> None:
    """Set the counters of a new iterator to the position of a resumed reader, if there is one."""
    sources = _resumed(iterator)
    if not sources:
        return
    batch_size, shards = iterator.batch_size, iterator._shards_num
    whole = rounds(iterator._size_no_pad, shards, batch_size)
    restored = any(pipeline._iterator_data for pipeline in iterator._pipes)
    if iterator._last_batch_policy == LastBatchPolicy.DROP and not restored:
        _skip_what_is_dropped(iterator, sources, whole)
    position, rest = _position(iterator), sources[0].rest
    epoch, batch = divmod(position, whole)
    turn = 0 if iterator._is_stick_to_shard else epoch
    iterator._shards_id = (iterator._shards_id + turn) % shards
    iterator._counter = batch * batch_size
    if rest is None or position > rest.stop:
        return
    iterator._rest_of_epoch = rest.stop, {name: getattr(iterator, name) for name in _SIZES}
    if position < rest.stop:
        shares = rest.shares()
        start = iterator._size - int(shares.max())
        iterator._counter = start + (position - rest.start) * batch_size
        sizes = np.empty_like(shares)
        sizes[(np.arange(shards) + turn) % shards] = start + shares
        vars(iterator).update(dict.fromkeys(_SIZES, sizes))


def _leave_rest(iterator: Any) -> None:
    """Restore the usual sizes of the shards in an iterator after the rest of an epoch."""
    stop, sizes = vars(iterator).get("_rest_of_epoch", (0, {}))
    if sizes and _position(iterator) >= stop:
        vars(iterator).update(sizes)
        del iterator._rest_of_epoch


def _positions(iterator: Any) -> dict[BatchStream, int]:
    """The sources of an iterator's epochs, with the position of the next batch in each."""
    name, pipelines = iterator._reader_name, iterator._pipes
    sources = {it: readers_of(it)[name].source(it) for it in pipelines if name in readers_of(it)}
    return {
        source: source.position.delivered(it._batches_to_consume) for it, source in sources.items()
    }


def _position(iterator: Any) -> int:
    return next(iter(_positions(iterator).values()))


def _resumed(iterator: Any) -> list[BatchStream]:
    """The sources of an iterator's epochs, if they were resumed; else an empty list.

    Raises:
        ValueError: the iterator cannot count the rest of the epoch.
    """
    resumed = {
        name
        for pipeline in iterator._pipes
        for name, group in readers_of(pipeline).items()
        if group.source(pipeline).resumed
    }
    if not resumed or (not iterator._reader_name and iterator._size < 0):  # without epochs
        return []
    if iterator._reader_name not in resumed:
        name = min(resumed)
        raise ValueError(
            f"reader {name!r} was resumed in mid-epoch, but the iterator does not know the end of "
            f"the epoch: pass reader_name={name!r} to the iterator"
        )
    positions = _positions(iterator)
    places = {(it.resumed, at, it.rest) for it, at in positions.items()}
    if len(places) > 1 or len(positions) < len(iterator._pipes):
        raise ValueError(
            f"reader {iterator._reader_name!r}: all pipelines of an iterator must be resumed from "
            "the same state"
        )
    return [*positions]


def _skip_what_is_dropped(iterator: Any, sources: list[BatchStream], whole: int) -> None:
    """Skip to the next epoch if no full batch is left, as without the interruption.

    Raises:
        ValueError: DALI's iterator would end its epochs before the reader.
    """
    size, shards, batch_size = iterator._size_no_pad, iterator._shards_num, iterator.batch_size
    if size % shards and size // shards % batch_size == 0:
        name = iterator._reader_name
        raise ValueError(
            f"reader {name!r}: with LastBatchPolicy.DROP, {size} samples, {shards} "
            f"shards and batches of {batch_size}, an iterator of DALI moves a batch of each epoch "
            "to the next one and cannot be resumed: use PARTIAL or FILL"
        )
    position, rest = sources[0].position.next, sources[0].rest
    epoch, batch = divmod(position, whole)
    left = size // shards - batch * batch_size
    if rest is not None and position < rest.stop:
        left = int(rest.shares().min()) - (position - rest.start) * batch_size
    if left < batch_size and position == _position(iterator):
        for source in sources:
            source.position.seek((epoch + 1) * whole)
