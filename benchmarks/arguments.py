"""The command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .environment import usable_cores
from .legs import LEGS, MAPPED, XNVME_GDS
from .work import Settings

SEVERAL_LEGS = ("compare", "demo")
"""The commands that run more than the one leg they are named after."""

_DEMO_BATCHES = 250  # eight epochs: one would be over before the queues are full
_DEFAULTS = Settings()
_MOST_THREADS = 16


def parser() -> argparse.ArgumentParser:
    """Options may stand before the command and after it; those after it win."""
    top = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Readers side by side: how fast each delivers samples to a DALI pipeline.",
        epilog="Options can stand before or after the command.",
    )
    _add_options(top)
    top.set_defaults(
        datadir=None,
        batchsize=_DEFAULTS.batch_size,
        batches=None,
        seed=_DEFAULTS.seed,
        rounds=None,
        threads=None,
        prefetch=_DEFAULTS.prefetch,
        device_id=_DEFAULTS.device_id,
        cold=False,
        decode=False,
        verify=False,
        bmap=None,
        uri=None,
        mem=_DEFAULTS.mem,
        io=None,
        spin=False,
        json=None,
        plot=None,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _commands().items():
        # Without the suppression its defaults would overwrite what stood before the command.
        command = commands.add_parser(name, help=summary, argument_default=argparse.SUPPRESS)
        _add_options(command)
        if name in SEVERAL_LEGS:
            command.add_argument(
                "--legs", type=_legs, default=None, metavar="LEG,LEG", help="only these"
            )
    return top


def _commands() -> dict[str, str]:
    return {
        "compare": "every leg that works here, in turn, over the same samples",
        "demo": "make a data set of JPEGs in demo/, then compare --verify on it",
        **{leg.name: f"alone: {leg.summary}" for leg in LEGS},
    }


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--datadir",
        metavar="DIR",
        help="class directories with images, or what holds them as train/ (the root of --bmap)",
    )
    add("--batchsize", type=at_least(1), metavar="N", help="samples in a batch (64)")
    add(
        "--batches",
        type=at_least(1),
        metavar="N",
        help="batches in a round (one epoch; demo: 250)",
    )
    add("--rounds", type=at_least(1), metavar="N", help="passes of every leg (5; of a leg alone 1)")
    add("--seed", type=int, metavar="N", help="shuffle with this seed (list order)")
    add(
        "--threads",
        type=at_least(1),
        metavar="N",
        help="DALI's num_threads (the cores, at most 16)",
    )
    add("--prefetch", type=at_least(1), metavar="N", help="DALI's prefetch_queue_depth (2)")
    add("--device-id", type=at_least(0), metavar="N", help="GPU of the pipeline (none)")
    add("--cold", action="store_true", help="drop the page cache before every pass; needs root")
    add("--decode", action="store_true", help="decode the images (only their headers are read)")
    add("--verify", action="store_true", help="first compare bytes and labels with fn.readers.file")
    mapped = " and ".join(leg.name for leg in MAPPED)
    add("--bmap", metavar="FILE", help=f"extent map for {mapped} (one is made for the run)")
    add("--uri", metavar="URI", help="device or image that the map is of (found by the map)")
    add("--mem", choices=("cpu", "gpu"), help=f"memory that {XNVME_GDS.name} reads into (cpu)")
    add("--io", metavar="NAME", help="libxnvme's asynchronous implementation (the usual one)")
    add("--spin", action="store_true", help=f"{XNVME_GDS.name} polls without a pause")
    add("--json", metavar="FILE", help="write all figures to FILE")
    add("--plot", metavar="FILE", help="write a picture of them, a PNG")


def at_least(least: int) -> Callable[[str], int]:
    """What makes a whole number of the text of an option, for argparse."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return number

    return parse


def _legs(text: str) -> list[str]:
    known = [leg.name for leg in LEGS]
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"there is no leg {', '.join(map(repr, unknown))}; there are {', '.join(known)}"
        )
    return names


def settings(options: argparse.Namespace) -> Settings:
    """What of the command line decides what is measured."""
    alone = options.command not in SEVERAL_LEGS
    return Settings(
        batch_size=options.batchsize,
        batches=options.batches or (_DEMO_BATCHES if options.command == "demo" else None),
        seed=options.seed,
        decode=options.decode,
        cold=options.cold,
        rounds=options.rounds or (1 if alone else _DEFAULTS.rounds),
        threads=options.threads or min(usable_cores(), _MOST_THREADS),
        prefetch=options.prefetch,
        device_id=options.device_id,
        bmap=options.bmap,
        uri=options.uri,
        mem=options.mem,
        io=options.io,
        spin=options.spin,
    )
