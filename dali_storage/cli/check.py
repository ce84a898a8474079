"""`python -m dali_storage check ROOT -o FILE`: lists unreadable and truncated samples.

All samples are read once. FILE has index, path and reason of each bad sample as a line of JSON, for
`exclude` of readers. Of shards of MDS and a list of wids, the hashes are compared instead, and FILE
has path and reason of each shard that differs. The exit status is 0 if all are good, 1 if some are
bad, else 2.
"""

import argparse
import json
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np

from bmap_tools import console
from bmap_tools.atomic import destination, replacing

from ..bad_samples.replacement import Checked, OnError, Substituting, culprits, is_of_sample
from ..bad_samples.structure import broken, is_judged, kind
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.objects import full_path
from ..order.ordering import Ordering
from ..readers.arguments import spec_of
from ..readers.batches import ReaderBatch, ReaderBatches
from ..readers.files import file
from ..reading.loading import LoadedBatch, Loading
from ..runtime.machine import processors
from . import index_samples, shards

_T = TypeVar("_T")

_BATCH = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the list; messages go to stderr. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage check",
        description="Read all samples, and list bad ones: missing, unreadable, empty, HTML, "
        "or a truncated JPEG, PNG or WAV. readers.file(exclude=FILE) then leaves them out. "
        "Of shards of MDS, and of wids: compare their hashes.",
    )
    parser.add_argument("root", metavar="ROOT", help="a directory, a URL, or an index of either")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the list to write, in JSON lines"
    )
    parser.add_argument("--decode", action="store_true", help="also decode samples with DALI")
    parser.add_argument(
        "--jobs", type=int, default=processors(), metavar="N", help="threads that examine"
    )
    index_samples.add_options(parser)
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {given.jobs}")
    try:
        destination(given.output)  # before the listing, which may be slow
        if found := shards.find(given.root):
            return _check_shards(found, given)
        with _batches(given) as batches, replacing(given.output) as output:
            catalog = batches.catalog
            bad, unusual, unjudged = _examine(batches, given.jobs, given.decode)
            for index, what in sorted(bad.items()):
                line = {"index": index, "path": full_path(catalog.path(index)), "reason": what}
                output.write(json.dumps(line).encode() + b"\n")
    except (BackendUnavailable, MemoryError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for index, what in sorted(unusual.items()):
        print(f"not bad, but {what}: {full_path(catalog.path(index))!r}", file=sys.stderr)
    if unjudged:
        why = "they are not JPEG, PNG or WAV; --decode checks other images and sound"
        why = "they are neither images nor sound" if given.decode else why
        print(f"{unjudged:,} samples were read, but not checked: {why}", file=sys.stderr)
    print(f"{len(bad):,} of {len(catalog):,} samples are bad", file=sys.stderr)
    return 1 if bad else 0


def _check_shards(found: shards.ShardDirectory, given: argparse.Namespace) -> int:
    """Compare shards with their hashes; return the exit status."""
    known, bad = shards.hashes(found), 0
    with replacing(given.output) as output, ThreadPoolExecutor(given.jobs) as pool:
        try:
            reasons = pool.map(shards.differing, known, known.values())
            with console.bar("hashing", len(known)) as tick:
                for number, (path, why) in enumerate(zip(known, reasons, strict=True)):
                    tick(number)
                    if why:
                        bad += 1
                        output.write(json.dumps({"path": path, "reason": why}).encode() + b"\n")
        finally:
            pool.shutdown(cancel_futures=True)
    print(f"{bad:,} of {len(known):,} shards are bad", file=sys.stderr)
    return 1 if bad else 0


class _Omitting(Checked):
    """Notes the bad samples of a batch, and delivers the others."""

    def read(self, samples: IntArray, read: Callable[[IntArray], _T]) -> _T:
        """See `Checked`."""
        try:
            return read(samples)
        except Exception as error:
            if not is_of_sample(error, self._catalog):
                raise
        self.bad.update(culprits(self._catalog, samples, read))
        others = np.setdiff1d(samples, [*self.bad])
        return read(others) if others.size else cast("_T", [LoadedBatch(others, 0, [[]])])


class _Omits(OnError):  # noqa: N818  (no exception)
    def loading(self, catalog: Catalog, ordering: Ordering) -> Callable[..., Loading]:
        """See `Handling`."""
        return partial(Substituting, _Omitting(catalog, self))


def _batches(given: argparse.Namespace) -> ReaderBatches:
    """Open the samples; bad ones will be left out."""
    filters = {name: getattr(given, name) for name in index_samples.FILTERS}
    options = {"backend_options": dict(given.backend_option), "pad_last_batch": True}
    prepared = spec_of(file).prepare(file_root=given.root, **filters, **options)
    opening = replace(prepared.opening, on_error=_Omits(broken=broken))
    return ReaderBatches(replace(prepared, opening=opening), _BATCH)


def _examine(
    batches: ReaderBatches, jobs: int, decode: bool
) -> tuple[dict[int, str], dict[int, str], int]:
    """Return why samples are bad, why others are unusual, and the number of unjudged others.

    Reasons are by the index of the sample.
    """
    catalog, own = batches.catalog, threading.local()
    bad, unusual, unjudged = dict[int, str](), dict[int, str](), list[int]()

    def examine(batch: ReaderBatch) -> None:
        own.judge = judge = getattr(own, "judge", None) or (_decoder() if decode else None)
        for index, item in zip(batch.index.tolist(), batch.data, strict=True):
            if judge and (it := kind(item, catalog.name(index))):
                what, rare = judge(item, it)
                bad.update({index: what} if what else {})
                unusual.update({index: rare} if rare else {})
            elif judge or not is_judged(item):
                unjudged.append(index)

    running = deque[Future[None]]()
    with console.bar("checking", len(catalog)) as tick, ThreadPoolExecutor(jobs) as pool:
        try:
            for number, batch in enumerate(batches):
                running.append(pool.submit(examine, batch))
                if len(running) > jobs:  # not all batches at once
                    running.popleft().result()
                tick(number * _BATCH)
            for it in running:
                it.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return bad | {index: what for index, _, what in batches.replaced}, unusual, len(unjudged)


def _decoder() -> Callable[[Any, str], tuple[str, str]]:
    """Make a function: a sample and its kind to DALI's decoding error or, if none, an oddity."""
    from nvidia.dali import Pipeline, fn  # needed for this only

    from ..dali.queries import failure

    made: dict[str, Any] = {}

    def decode(item: Any, it: str) -> tuple[str, str]:
        if (pipeline := made.pop(it, None)) is None:
            # One at a time, for DALI does not say which of a batch has failed.
            pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
            with pipeline:
                data = fn.external_source(name="data", batch=True)
                output = fn.decoders.audio(data)[0] if it == "sound" else fn.decoders.image(data)
                pipeline.set_outputs(output)
        pipeline.feed_input("data", [np.frombuffer(item, np.uint8)])
        try:
            shape = pipeline.run()[0][0].shape()
        except RuntimeError as error:
            return failure(error), ""
        made[it] = pipeline
        if it == "sound":
            return "", "" if shape[0] else "sound without samples"
        return "", "an image of 1x1" if shape[:2] == [1, 1] else ""

    return decode
