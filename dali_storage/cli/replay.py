"""`python -m dali_storage replay STATE [PATH ...] --step N`: which samples had a step of a run?

STATE is JSON of `readers.state()`, taken at any time of the run. PATH, or --reader and --argument,
name the samples, and any order other than DALI's, as in the run. Below the heading, each line has
the step, the rank, and the number and the name of a sample, before bad ones are replaced. With
`--name NAME`, the lines are of this file, in the last two epochs before STATE. STATE knows the
steps before. With `--forecast`, the steps after STATE are those of a run that goes on with as many
ranks.
"""

import argparse
import os
import sys
from collections.abc import Sequence

import numpy as np

from bmap_tools import console

from ..contract.catalog import Catalog
from ..order.resuming.history import Run
from ..order.resuming.state import SavedPositions, read_state
from . import reader_options

_EPOCHS = 2  # that are searched


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the samples; errors go to stderr. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m dali_storage replay", description=__doc__)
    parser.add_argument("state", metavar="STATE", help="JSON of readers.state()")
    reader_options.add_options(parser)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--step", type=int, metavar="N", help="batches of each rank before it")
    wanted.add_argument("--name", metavar="NAME", help="of a file, as it is printed")
    parser.add_argument("--rank", type=int, metavar="R", help="default: all ranks")
    text = "steps after STATE, if the run goes on with the same ranks and batches"
    parser.add_argument("--forecast", action="store_true", help=text)
    given = parser.parse_args(arguments)
    try:
        _print(given)
    except reader_options.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _print(given: argparse.Namespace) -> None:
    run, catalog = _run(given)
    steps, numbers = _steps(run, given), None
    if given.name is not None:
        numbers = _samples(catalog, os.fsencode(given.name))
    if steps.stop > run.step:
        print(f"a forecast, if {run.ranks(run.step)} ranks go on", file=sys.stderr)
    most = max(map(run.ranks, steps), default=run.ranks(run.step)) - 1
    if given.rank is not None and not 0 <= given.rank <= most:
        raise ValueError(f"--rank must be from 0 to {most}, not {given.rank}")
    console.print_result("step  rank  sample  name")
    for step in steps:
        every = range(run.ranks(step))
        for rank in every if given.rank is None else {given.rank} & {*every}:
            batch = run.batch(step, rank)
            if numbers is not None:
                batch = np.unique(batch[np.isin(batch, numbers)])  # without padding
            for sample in batch.tolist():
                piece = sample * catalog.pieces
                line = f"{step:4}  {rank:4}  {sample:6}  {os.fsdecode(catalog.name(piece))}"
                console.print_result(f"{line}  {catalog.where(piece)}".rstrip())


def _steps(run: Run, given: argparse.Namespace) -> range:
    """Return the steps to print."""
    if given.name is not None:
        first, most = run.step, _EPOCHS * run.rounds
        return range(first, first + most) if given.forecast else range(max(0, first - most), first)
    if given.step < 0:
        raise ValueError(f"--step must be at least 0, not {given.step}")
    if given.step >= run.step and not given.forecast:
        what = f"--step {given.step} is after the state, which was saved before step {run.step}"
        raise ValueError(f"{what}: give a later state; or --forecast, for the same number of ranks")
    return range(given.step, given.step + 1)


def _run(given: argparse.Namespace) -> tuple[Run, Catalog]:
    """Return the run of a state, and its samples."""
    state = reader_options.loaded(given.state)
    catalog, reader, ordering = reader_options.opening_of(**reader_options.described(given)).open()
    reader.close()
    what = f"{given.state!r} is not a state of readers.state()"
    saved, options = read_state(what, state, ordering.dealt)
    if saved["seed"] is None:
        raise ValueError(f"{given.state!r} has no common seed: each rank used its pipeline's")
    # Refuses other samples, and another order.
    SavedPositions(given.state, catalog, options, 1, True, ordering).read_state(state)
    ordering.replay(saved["changes"])
    return Run(saved, options, ordering), catalog


def _samples(catalog: Catalog, name: bytes) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers of the samples in a file."""
    alike = np.flatnonzero(np.diff(catalog.offsets) == len(name)).tolist()
    if not (found := [it for it in alike if catalog.file_name(it) == name]):
        raise ValueError(f"there is no file {os.fsdecode(name)!r}; names are as --step prints them")
    files = catalog.files(np.arange(len(catalog)))
    return np.flatnonzero(np.isin(files, found)) // catalog.pieces
