"""`python -m dali_storage replay STATE [PATH ...] --step N`: which samples had a step of a run?

STATE is JSON of `readers.state()`, taken at any time of the run. PATH, or --reader and --argument,
name the samples, and any order other than DALI's, as in the run. Each line has the rank, the number
and the name of a sample, before bad ones are replaced. With `--name NAME`, each has a step after
STATE, the rank and the number, in two epochs.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from bmap_tools import console

from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
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
    given = parser.parse_args(arguments)
    try:
        _print(given)
    except (BackendUnavailable, KeyError, MemoryError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _print(given: argparse.Namespace) -> None:
    with open(given.state, "rb") as file:
        state = json.load(file)
    run, catalog = _run(state, given)
    if given.name is not None:
        _search(run, catalog, given.name, given.rank)
        return
    if given.step < 0:
        raise ValueError(f"--step must be at least 0, not {given.step}")
    for rank in _ranks(run, given.step, given.rank):
        for sample in run.batch(given.step, rank).tolist():
            piece = sample * catalog.pieces
            name, where = os.fsdecode(catalog.name(piece)), catalog.where(piece)
            console.print_result("  ".join([f"{rank}", f"{sample}", name, where]).rstrip())


def _run(state: Any, given: argparse.Namespace) -> tuple[Run, Catalog]:
    """Return the run of a state, and its samples."""
    opening = reader_options.opening_of(**reader_options.described(given))
    catalog, reader, ordering = opening.open()
    reader.close()
    what = f"{given.state!r} is not a state of readers.state()"
    saved, options = read_state(what, state, ordering.dealt)
    if saved["seed"] is None:
        raise ValueError(f"{given.state!r} has no common seed: each rank used its pipeline's")
    # Refuses other samples, and another order.
    SavedPositions(given.state, catalog, options, 1, True, ordering).read_state(state)
    ordering.replay(saved["changes"])
    return Run(saved, options, ordering), catalog


def _ranks(run: Run, step: int, rank: int | None) -> Sequence[int]:
    every = range(run.ranks(step))
    if rank is not None and rank not in every:
        raise ValueError(f"--rank: step {step} has the ranks 0 to {len(every) - 1}, not {rank}")
    return every if rank is None else [rank]


def _search(run: Run, catalog: Catalog, name: str, rank: int | None) -> None:
    """Print the next steps of a file, from the state on, in two epochs."""
    files = catalog.files(np.arange(len(catalog)))
    wanted = np.flatnonzero(files == _file(catalog, os.fsencode(name))) // catalog.pieces
    for step in range(run.step, run.step + _EPOCHS * run.rounds):
        for each in _ranks(run, step, rank):
            batch = run.batch(step, each)
            for sample in np.unique(batch[np.isin(batch, wanted)]).tolist():
                console.print_result(f"{step}  {each}  {sample}")


def _file(catalog: Catalog, name: bytes) -> int:
    """Return the number of a file."""
    names, at = bytes(catalog.names), -1
    while (at := names.find(name, at + 1)) >= 0:
        file = int(np.searchsorted(catalog.offsets, at))
        if catalog.offsets[file] == at and catalog.offsets[file + 1] == at + len(name):
            return file
    raise ValueError(f"there is no file {os.fsdecode(name)!r}; names are as --step prints them")
