"""`python -m dali_storage check ROOT -o FILE`: lists unreadable and truncated samples.

All samples are read once. FILE has index, path and reason of each bad sample as a line of JSON, for
`exclude` of readers. The exit status is 0 if all are good, 1 if some are bad, else 2.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from bmap_tools import console
from bmap_tools.atomic import destination, replacing

from ..bad_samples.replacement import culprits, is_of_sample, reason
from ..bad_samples.structure import broken, is_judged, kind
from ..contract import registry
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.objects import full_path, scheme
from ..contract.reader import Reader
from ..contract.views import Views
from ..reading.batches import read_batch
from ..reading.opening import Opening
from ..runtime.machine import processors
from ..samples.finding import find, locations
from . import index_samples

_BATCH = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the list; messages go to stderr. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage check",
        description="Read all samples, and list bad ones: missing, unreadable, empty, HTML, "
        "or a truncated JPEG, PNG or WAV. readers.file(exclude=FILE) then leaves them out.",
    )
    parser.add_argument("root", metavar="ROOT", help="a directory, a URL, or an index of either")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="the list to write, in JSON lines"
    )
    parser.add_argument("--decode", action="store_true", help="also decode samples with DALI")
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help="threads")
    index_samples.add_options(parser)
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {given.jobs}")
    try:
        destination(given.output)  # before the listing, which may be slow
        names, options = locations(given.root, None, None), dict(given.backend_option)
        filters = {name: getattr(given, name) for name in index_samples.FILTERS}
        catalog, reader, _ = Opening(
            find=partial(find, file_root=given.root, **filters),
            reader=registry.configure(registry.choose(None, names), options),
            options=options,
            remote=any(map(scheme, names)),
        ).open()
        with reader, replacing(given.output) as file:
            bad, unusual, unjudged = _examine(catalog, reader, given.jobs, given.decode)
            for index, what in sorted(bad.items()):
                line = {"index": index, "path": full_path(catalog.path(index)), "reason": what}
                file.write(json.dumps(line).encode() + b"\n")
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


def _examine(
    catalog: Catalog, reader: Reader, jobs: int, decode: bool
) -> tuple[dict[int, str], dict[int, str], int]:
    """Return why samples are bad, why others are unusual, and the number of unjudged others.

    Reasons are by the index of the sample.
    """
    lanes, own = SimpleQueue[int](), threading.local()
    for lane in range(min(jobs, reader.lanes)):
        lanes.put(lane)
    bad, unusual, unjudged = dict[int, str](), dict[int, str](), list[int]()

    def read(samples: IntArray) -> Sequence[Any]:
        lane = lanes.get()
        try:
            batch = read_batch(reader, catalog, samples, reader.allocate, lane)
        finally:
            lanes.put(lane)
        return Views(batch.buffer, batch.offsets, batch.sizes).slices()

    def work(start: int) -> None:
        samples = np.arange(start, min(start + _BATCH, len(catalog)))
        try:
            contents = read(samples)
        except Exception as error:
            if not is_of_sample(error, catalog):
                raise
            failed = culprits(catalog, samples, read)
            bad.update({index: reason(each) for index, each in failed.items()})
            samples = np.setdiff1d(samples, [*failed])
            contents = read(samples) if samples.size else ()
        own.judge = judge = getattr(own, "judge", None) or (_decoder() if decode else None)
        for index, item in zip(samples.tolist(), contents, strict=True):
            name = partial(catalog.name, index)
            what, rare = broken(item, name), ""
            if judge and not what and (it := kind(item, name())):
                what, rare = judge(item, it)
            elif not what and (judge or not is_judged(item)):
                unjudged.append(index)
            bad.update({index: what} if what else {})
            unusual.update({index: rare} if rare else {})

    with console.bar("checking", len(catalog)) as tick, ThreadPoolExecutor(jobs) as pool:
        try:
            starts = range(0, len(catalog), _BATCH)
            for start, _ in zip(starts, pool.map(work, starts), strict=True):
                tick(start)
        finally:
            pool.shutdown(cancel_futures=True)
    return bad, unusual, len(unjudged)


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
