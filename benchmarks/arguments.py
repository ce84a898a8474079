"""The command line."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from functools import partial

from .container_legs import CONTAINER_LEGS
from .environment import usable_cores
from .legs import LEGS, MAPPED, XNVME_BAM, XNVME_GDS, names_of
from .object_legs import OBJECT_LEGS
from .workload import Settings

LOADERS = "loaders"
"""The command that compares loaders instead of readers."""
CONTAINERS = "containers"
"""The command that compares readers of containers instead of files."""
OBJECTS = "objects"
"""The command that compares readers of an object store."""
SEVERAL_LEGS = ("compare", "demo", CONTAINERS, OBJECTS, LOADERS)
"""The commands that run several legs. Every other command is named after its only leg."""

LOADER_SETS = ("imagenet-train", "imagenet-eval", "cifar10")
"""What loaders are compared on."""
LOADER_LEGS = (
    "dali",
    "no-loader",
    *(leg.name for leg in LEGS if leg.backend not in (None, XNVME_BAM.backend)),
)
"""The legs of loaders, beside torchvision's."""

_DEMO_BATCHES = 250  # eight epochs: one would end before the queues are full
_DEFAULTS = Settings()
_MOST_THREADS = 16


def parser() -> argparse.ArgumentParser:
    """The parser. Options may precede or follow the command; those that follow it win."""
    top = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Compares how fast readers deliver samples to a DALI pipeline.",
        epilog="Options may precede or follow the command.",
    )
    _add_options(top)
    other = dict.fromkeys(("datadir", "json", "plot", "rounds", "threads"))
    top.set_defaults(**asdict(_DEFAULTS) | other, verify=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    summaries = {
        "compare": "run every leg that works here, in turn, on the same samples",
        "demo": "make a data set of JPEGs in ./demo, then compare --verify on it",
        CONTAINERS: "compare readers of tars and TFRecord files, on DIR/shards",
        OBJECTS: "compare readers of s3://, on copies of the files in DIR",
        LOADERS: "compare whole loaders with torchvision: pixels first, then the time",
        **{leg.name: f"only this leg: {leg.summary}" for leg in LEGS},
    }
    for name, summary in summaries.items():
        # Without SUPPRESS, its defaults would overwrite the options that precede the command.
        command = commands.add_parser(name, help=summary, argument_default=argparse.SUPPRESS)
        _add_options(command)
        if name in SEVERAL_LEGS:
            text = "run only these legs"
            others = {LOADERS: LOADER_LEGS} | {
                which: [leg.name for leg in legs]
                for which, legs in ((CONTAINERS, CONTAINER_LEGS), (OBJECTS, OBJECT_LEGS))
            }
            legs = partial(_legs, known=others.get(name, [leg.name for leg in LEGS]))
            command.add_argument("--legs", type=legs, default=None, metavar="LEG,LEG", help=text)
        if name == LOADERS:
            _add_loader_options(command)
        if name == OBJECTS:
            _add_object_options(command)
    return top


def _add_loader_options(parser: argparse.ArgumentParser) -> None:
    count = _integer(1, 2**31 - 1)
    parser.add_argument("--set", required=True, choices=LOADER_SETS, help="what DIR has")
    text = "numbers of workers of torch's DataLoader (default: 0,2)"
    parser.add_argument("--workers", type=_workers, default=[0, 2], metavar="N,N", help=text)
    text = "threads of torch in this process (default: 1, as in workers)"
    parser.add_argument("--torch-threads", type=count, default=1, metavar="N", help=text)
    text = "images that the model takes in a second (default: all that come)"
    parser.add_argument("--model", type=count, default=None, metavar="N", help=text)


def _add_object_options(parser: argparse.ArgumentParser) -> None:
    text = "where the files of DIR are, too: s3://bucket/prefix"
    parser.add_argument("--url", required=True, metavar="URL", help=text)
    text = "the server; DALI needs its IP address (default: as AWS_ENDPOINT_URL says)"
    parser.add_argument("--endpoint", default=None, metavar="URL", help=text)
    text = "requests of object-store under way at once (default: the backend's)"
    parser.add_argument("--requests", type=_integer(1, 2**31 - 1), metavar="N", help=text)
    text = "seconds after which to ask once more (default: no leg)"
    parser.add_argument("--hedge", type=float, metavar="SECONDS", help=text)
    text = "directory on local disk for the leg with a cache (default: no leg)"
    parser.add_argument("--cache", metavar="DIR", help=text)


def _add_options(parser: argparse.ArgumentParser) -> None:
    mapped, by_commands = names_of(MAPPED), names_of((XNVME_GDS, XNVME_BAM))
    count, seed = _integer(1, 2**31 - 1), _integer(-(2**63), 2**63 - 1)
    values: list[tuple[str, Callable[[str], object], str, str, str]] = [
        ("--datadir", str, "DIR", "class directories, or their parent as DIR/train", "of --bmap"),
        ("--batchsize", count, "N", "samples per batch", "64"),
        ("--batches", count, "N", "batches per round", f"one epoch; demo: {_DEMO_BATCHES}"),
        ("--rounds", count, "N", "rounds per leg", "5, or 1 for a single leg"),
        ("--seed", seed, "N", "shuffle with this seed", "list order"),
        ("--threads", count, "N", "num_threads of DALI", f"all cores, at most {_MOST_THREADS}"),
        ("--prefetch", count, "N", "prefetch_queue_depth of DALI", "2"),
        ("--device-id", _integer(0, 2**31 - 1), "N", "GPU of the pipeline", "none"),
        ("--bmap", str, "FILE", f"extent map for {mapped}", "made for the run"),
        ("--uri", str, "URI", "device or image with the mapped files", "found through the map"),
        ("--queues", count, "N", f"queues of {by_commands}", "the backend's"),
        ("--io", str, "NAME", "asynchronous implementation of libxnvme", "the backend's"),
        ("--copying-lanes", count, "N", "lanes of file legs that copy at once", "spare cores"),
        ("--json", str, "FILE", "write all figures to FILE", "not written"),
        ("--plot", str, "FILE", "write a chart of the figures to FILE, a PNG", "not written"),
    ]
    for option, convert, metavar, what, default in values:
        name = option[2:].replace("batchsize", "batch_size").replace("-", "_")
        text = f"{what} (default: {default})"
        parser.add_argument(option, dest=name, type=convert, metavar=metavar, help=text)
    memory = f"memory that {by_commands} read into; with gpu, all legs end there (default: cpu)"
    parser.add_argument("--mem", choices=("cpu", "pinned", "gpu"), help=memory)
    pinned = "page-locked memory, for a pipeline with a GPU (default: auto, where it is possible)"
    parser.add_argument("--pinned", choices=("auto", "yes", "no"), help=pinned)
    for option, text in {
        "--cold": "drop the page cache before every round; needs root",
        "--decode": "decode the images instead of reading only their headers",
        "--verify": "first compare bytes and labels with those of fn.readers.file",
        "--spin": f"{XNVME_GDS.name} polls for completions without pauses",
    }.items():
        parser.add_argument(option, action="store_true", help=text)


def _integer(least: int, most: int) -> Callable[[str], int]:
    """An argparse type: an integer from `least` to `most`."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            expected = f"an integer from {least} to {most}"
            raise argparse.ArgumentTypeError(f"must be {expected}, not {text}")
        return number

    return parse


def _workers(text: str) -> list[int]:
    return [_integer(0, 1024)(number) for number in text.split(",")]


def _legs(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"unknown leg {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        raise argparse.ArgumentTypeError(message)
    return names


def settings(options: argparse.Namespace) -> Settings:
    """The options that decide what is measured."""
    given = {setting.name: getattr(options, setting.name) for setting in fields(Settings)}
    if options.command == "demo":
        given["batches"] = options.batches or _DEMO_BATCHES
    given["rounds"] = options.rounds or (_DEFAULTS.rounds if options.command in SEVERAL_LEGS else 1)
    given["threads"] = options.threads or min(usable_cores(), _MOST_THREADS)
    return Settings(**given)
