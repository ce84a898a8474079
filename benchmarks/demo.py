"""The demo: DALI's reader of files and ours, verified, then timed hot, cold, over S3, decoded."""

import argparse
import fcntl
import glob
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import asdict, replace
from typing import IO

from bmap_tools.console import bar

from . import arguments, dataset, disk, environment, maps, report, s3
from .demo_summary import LABELS, notes_of, sentence, summary
from .legs import BLOCK, LEGS, OBJECT_LEGS, REFERENCE
from .measure import measure, results_of, running
from .plot import draw
from .situations import serve
from .verdict import Comparison, Watch, untuned
from .verify import verify
from .workload import BadInputError, NotHereError, Workload, ordered, prepare, summarize_error

DIRECTORY = "demo"  # in the working directory, because the program's may be read-only
_PICTURES = os.path.join(DIRECTORY, "pictures")
_DISK_BYTES = 320 << 20  # for 190 MB of pictures
_ROUNDS = 3
_SECONDS = 1.0  # of a round
_PLAIN = ("dali", "dali-nommap", "python-file")
_FILES = (*_PLAIN, "python-file-direct")
_OBJECTS = ("dali-s3-32", "object-store")  # 32 threads: with this latency DALI's fastest
_REFUSED = ("datadir", "cold", "bmap", "uri", "mem", "queues", "io", "spin")


def run(options: argparse.Namespace) -> int:
    """Run the demo; return the exit status: 1 if a leg failed or differs from DALI's."""
    defaults = arguments.parser().parse_args(["demo"])
    for name in _REFUSED:
        if getattr(options, name) != getattr(defaults, name):
            what = f"demo makes its own data and disk, and takes no --{name}"
            raise BadInputError(f"{what}; to measure yours: compare --datadir DIR")
    try:
        with ExitStack() as stack:
            os.makedirs(DIRECTORY, exist_ok=True)
            return _Demo(stack, options, stack.enter_context(_locked_log())).run()
    except OSError as error:
        need = f"the demo needs 600 MB and write permission in {os.path.abspath(DIRECTORY)}"
        raise BadInputError(f"demo: {summarize_error(error)}; {need}") from error


@contextmanager
def _locked_log() -> Iterator[IO[str]]:
    """The file for the details. Only one demo at a time may have it."""
    with open(os.path.join(DIRECTORY, "demo.log"), "a", encoding="utf-8", buffering=1) as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            where = os.path.abspath(DIRECTORY)
            raise BadInputError(f"another demo is running in {where}: wait for its end") from None
        log.truncate(0)
        yield log


class _Demo:
    """The steps of one demo. `stack` undoes them; `log` takes the details."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace, log: IO[str]) -> None:
        options.plot = options.plot or os.path.join(DIRECTORY, "demo.png")
        options.json = options.json or os.path.join(DIRECTORY, "demo.json")
        report.check_outputs(options)
        self._stack, self._options, self._log = stack, options, log
        self._left_out: list[str] = []
        self._watch = Watch()

    def run(self) -> int:
        _make_pictures()
        with redirect_stderr(self._log):
            hot = self._files(self._disk())
            parts = [part for part in (hot, self._objects(hot)) if part is not None]
            for part in parts:
                with _step(f"verifying bytes, labels and order: {part.title}"):
                    others = [leg for leg in part.legs if leg is not REFERENCE]  # that is DALI's
                    verify(others, part.workload, part.results)
            parts += [self._decoded(hot)]
            if (cold := self._cold(hot)) is not None:
                parts.insert(1, cold)
            for part in parts:
                self._time(part)
        return self._report(parts)

    def _time(self, part: Comparison) -> None:
        legs = part.legs
        if not part.workload.settings.cold:
            environment.fill_page_cache(part.workload)
            # The others read the disk, whatever is in the page cache.
            legs = [leg for leg in legs if leg.name in (*_PLAIN, *_OBJECTS)]
        with _step(f"timing {len(running(legs, part.results))} readers: {part.title}"):
            measure(legs, part.workload, part.results)

    def _disk(self) -> str:
        """The directory with the pictures: on a disk of the demo's own, if there can be one."""
        try:
            place = self._stack.enter_context(disk.mounted(DIRECTORY, _DISK_BYTES))
        except NotHereError as reason:
            self._left_out.append(f"{BLOCK.name}, which reads a device: {reason}")
            return _PICTURES
        with _step("copying them to an ext4 image behind a loop device"):
            shutil.copytree(_PICTURES, place, dirs_exist_ok=True)
            os.sync()
        return place

    def _files(self, place: str) -> Comparison:
        """The readers of files, with a hot page cache."""
        names = _FILES if place == _PICTURES else (*_FILES, BLOCK.name)
        legs = [leg for leg in LEGS if leg.name in names]
        given = arguments.settings(self._options)
        seed, rounds = 1 if given.seed is None else given.seed, self._options.rounds or _ROUNDS
        seconds = min(_SECONDS, given.seconds)
        workload = prepare(place, replace(given, seed=seed, rounds=rounds, seconds=seconds))
        results = results_of(legs, workload)
        workload = self._stack.enter_context(maps.with_map(workload, results, legs))
        return Comparison("hot", legs, workload, results)

    def _cold(self, hot: Comparison) -> Comparison | None:
        """The same with a cold page cache, if it can be dropped here."""
        os.sync()  # dirty pages stay
        environment.make_cold(hot.workload)
        if not environment.is_cold(hot.workload.catalog.path(0)):
            kind = environment.file_system_type(DIRECTORY)
            self._left_out.append(f"cold reads: {kind} keeps its pages: run it on another disk")
            return None
        legs, rounds = running(hot.legs, hot.results), 2 * hot.workload.settings.rounds - 1
        workload = ordered(hot.workload, cold=True, rounds=rounds, seconds=0.0)  # of an epoch each
        return Comparison("cold", legs, workload, results_of(legs, workload))

    def _decoded(self, hot: Comparison) -> Comparison:
        """What is left of the difference in a pipeline that decodes on the CPU."""
        legs = [leg for leg in running(hot.legs, hot.results) if leg.name in _PLAIN]
        workload = ordered(_fewer_rounds(hot), decode=True)
        return Comparison("decoded", legs, workload, results_of(legs, workload))

    def _objects(self, hot: Comparison) -> Comparison | None:
        """The readers of s3://, from a server on 127.0.0.1 that serves the same files."""
        legs = [leg for leg in OBJECT_LEGS if leg.name in _OBJECTS]
        try:
            for leg in legs:
                if reason := leg.unsupported_reason(hot.workload):
                    raise NotHereError(reason)
            workload = serve(_fewer_rounds(hot), self._stack, s3.LATENCY, self._log)
        except NotHereError as reason:
            self._left_out.append(f"S3: {reason}")
            return None
        title = f"S3 {s3.LATENCY * 1000:.0f} ms"
        return Comparison(title, legs, workload, results_of(legs, workload))

    def _report(self, parts: Sequence[Comparison]) -> int:
        """Print the summary, and write the plot and all figures."""
        options = self._options
        workload = parts[0].workload
        machine, busy = environment.describe(workload), self._watch.busy()
        if BLOCK in parts[0].legs:
            machine["file_system"] += " on a loop device"
        document = {"environment": machine | {"busy": busy}, "verdict": untuned(parts)} | {
            part.title: {
                "settings": asdict(part.workload.settings),
                "readers": report.legs(part.results),
            }
            for part in parts
        }
        report.write_json(options.json, document)
        draw(options.plot, parts, machine, LABELS)
        notes = notes_of(parts, busy, self._left_out)
        print("", *summary(parts, machine, notes), sep="\n")
        print(f"Plot: {options.plot}; all turns: {options.json}; log: {self._log.name}")
        print(sentence(parts))
        return int(any(it.failed for part in parts for it in part.results.values()))


def _fewer_rounds(hot: Comparison) -> Workload:
    """The workload for slow readers, whose ten batches a turn take longer than its time."""
    return ordered(hot.workload, rounds=max(hot.workload.settings.rounds // 3, 1))


def _make_pictures() -> None:
    for unfinished in glob.glob(os.path.join(_PICTURES, ".making-*")):  # by one that was killed
        shutil.rmtree(unfinished)
    step = f"{dataset.IMAGES} images in {os.path.abspath(_PICTURES)}"
    try:
        with _step(step), bar(step, dataset.IMAGES) as tick:
            dataset.make(_PICTURES, tick, dataset.IMAGES)
    except OSError as error:
        raise BadInputError(f"demo: cannot make {step}: {summarize_error(error)}") from error


@contextmanager
def _step(text: str) -> Iterator[None]:
    """Print what is done, then how long it took."""
    print(text, end=" ... ", flush=True)
    start = time.monotonic()
    try:
        yield
    finally:
        print(f"{time.monotonic() - start:.0f} s", flush=True)
