"""`python -m dali_storage check ROOT [-o FILE]`: which samples cannot be read or are not whole.

Everything is read once. A line of JSON tells index, path and reason of each bad sample; `exclude`
of readers takes the list. The exit status is 0 if all are good, 1 if some are bad, else 2.
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
from bmap_tools.atomic import replacing

from ..contract import registry
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.objects import full_path, scheme
from ..contract.processors import processors
from ..contract.reader import Reader
from ..contract.views import Views
from ..reading.batches import read_batch
from ..reading.opening import Opening
from ..reading.replacement import culprits, is_of_sample, reason
from ..samples import discovery
from ..samples.locations import locations
from ..samples.structure import broken, kind
from . import index_samples

_BATCH = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the list; messages go to stderr. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage check",
        description="Read all samples of ROOT, a directory, a URL or an index of either, and list "
        "those that are missing, cannot be read, or are not whole: cut short, empty, of no known "
        "format. readers.file(exclude=FILE) leaves them out.",
    )
    parser.add_argument("root", metavar="ROOT")
    parser.add_argument("-o", "--output", metavar="FILE", help="by default standard output")
    decode = "also decode images and sound by DALI, on the CPU"
    parser.add_argument("--decode", action="store_true", help=decode)
    jobs = "how many threads; by default one for each processor"
    parser.add_argument("--jobs", type=int, default=processors(), metavar="N", help=jobs)
    index_samples.add_options(parser)
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {given.jobs}")
    try:
        names, options = locations(given.root, None, None), dict(given.backend_option)
        filters = {name: getattr(given, name) for name in index_samples.FILTERS}
        catalog, reader = Opening(
            find=partial(discovery.discover, file_root=given.root, **filters),
            reader=registry.configure(registry.choose(None, names), options),
            options=options,
            remote=any(map(scheme, names)),
        ).open()
        with reader:
            bad, suspect = _examine_all(catalog, reader, given.jobs, given.decode)
        paths = {index: full_path(catalog.path(index)) for index in (*bad, *suspect)}
        each = [{"index": it, "path": paths[it], "reason": bad[it]} for it in sorted(bad)]
        lines = [json.dumps(line) + "\n" for line in each]
        if given.output is None:
            sys.stdout.writelines(lines)
        else:
            with replacing(given.output) as file:
                file.writelines(line.encode() for line in lines)
    except (BackendUnavailable, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(bad):,} of {len(catalog):,} samples are bad", file=sys.stderr)
    for index, what in sorted(suspect.items()):
        print(f"not bad, but {what}: {paths[index]!r}", file=sys.stderr)
    return 1 if bad else 0


def _examine_all(
    catalog: Catalog, reader: Reader, jobs: int, decode: bool
) -> tuple[dict[int, str], dict[int, str]]:
    """The reasons of the bad samples by index, and what is unusual in others."""
    lanes, own = SimpleQueue[int](), threading.local()
    for lane in range(min(jobs, reader.lanes)):
        lanes.put(lane)
    bad, suspect = dict[int, str](), dict[int, str]()

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
        if decode and not hasattr(own, "decode"):
            own.decode = _decoder()
        for index, item in zip(samples.tolist(), contents, strict=True):
            found, unusual = broken(item, partial(catalog.name, index)), ""
            if decode and not found:
                found, unusual = own.decode(item)
            bad.update({index: found} if found else {})
            suspect.update({index: unusual} if unusual else {})

    with console.bar("checking", len(catalog)) as tick, ThreadPoolExecutor(jobs) as pool:
        try:
            starts = range(0, len(catalog), _BATCH)
            for start, _ in zip(starts, pool.map(work, starts), strict=True):
                tick(start)
        finally:
            pool.shutdown(cancel_futures=True)
    return bad, suspect


def _decoder() -> Callable[[Any], tuple[str, str]]:
    """What tells why DALI cannot decode a sample, and what is unusual in one that it can.

    One at a time, for DALI does not say which one of a batch fails.
    """
    from nvidia.dali import Pipeline, fn  # needed for this only

    from ..dali import failure

    made: dict[str, Any] = {}

    def make(sound: bool) -> Any:
        pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
        with pipeline:
            data = fn.external_source(name="data", batch=True)
            output = fn.decoders.audio(data)[0] if sound else fn.decoders.image(data)
            pipeline.set_outputs(output)
        return pipeline

    def decode(item: Any) -> tuple[str, str]:
        if not (it := kind(item)):
            return "", ""
        try:
            pipeline = made.pop(it, None) or make(it == "sound")
            pipeline.feed_input("data", [np.frombuffer(item, np.uint8)])
            shape = pipeline.run()[0][0].shape()
        except RuntimeError as error:
            return failure(error), ""
        made[it] = pipeline
        unusual = {"sound without samples": shape[0] == 0, "an image of 1x1": shape[:2] == [1, 1]}
        return "", next((what for what, applies in unusual.items() if applies), "")

    return decode
