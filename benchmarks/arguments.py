"""The command line."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from functools import partial

from .environment import usable_cores
from .legs import LEGS, MAPPED, TABLES, XNVME_BAM, XNVME_BLOCK, Leg
from .situations import SITUATIONS
from .workload import BadInputError, Settings

_DEFAULTS = Settings()
_MOST_THREADS = 16
_MOST_SECONDS = 3600


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


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be from 0 to {_MOST_SECONDS}, not {text}")
    return number


def _names(text: str, what: str, known: Sequence[str]) -> list[str]:
    names = [*known] if text == "all" else text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        message = f"unknown {what} {', '.join(map(repr, unknown))}; known are {', '.join(known)}"
        raise argparse.ArgumentTypeError(message)
    return names


def names_of(legs: Iterable[Leg]) -> str:
    """The names of legs, for a sentence."""
    *names, last = (leg.name for leg in legs)
    return f"{', '.join(names)} and {last}" if names else last


_COUNT = _integer(1, 2**31 - 1)
_MAPPED, _BY_COMMANDS = names_of(MAPPED), names_of((XNVME_BLOCK, XNVME_BAM))
_Rows = Sequence[tuple[str, Callable[[str], object], str, str, str]]
_OPTIONS: _Rows = (
    ("--datadir", str, "DIR", "class directories, or their parent as DIR/train", "of --bmap"),
    ("--batchsize", _COUNT, "N", "samples per batch", "64"),
    (
        "--batches",
        _COUNT,
        "N",
        "batches of a round, in 8 turns; cold: of each pass",
        "as --seconds; cold: an epoch",
    ),
    ("--rounds", _COUNT, "N", "rounds per reader", "5; demo: 3; single reader: 1"),
    ("--seconds", _seconds, "S", "least time of a round; cold: in whole passes", "2"),
    ("--seed", _integer(-(2**63), 2**63 - 1), "N", "shuffle with this seed", "list order"),
    ("--threads", _COUNT, "N", "num_threads of DALI", f"all cores, at most {_MOST_THREADS}"),
    ("--prefetch", _COUNT, "N", "prefetch_queue_depth of DALI", "2"),
    ("--device-id", _integer(0, 2**31 - 1), "N", "GPU of the pipeline", "none"),
    ("--bmap", str, "FILE", f"extent map for {_MAPPED}", "made for the run"),
    ("--uri", str, "URI", "device or image with the mapped files", "found through the map"),
    ("--queues", _COUNT, "N", f"queues of {_BY_COMMANDS}", "the backend's"),
    ("--io", str, "NAME", "asynchronous implementation of libxnvme", "the backend's"),
    ("--copying-lanes", _COUNT, "N", "lanes of readers of files that copy at once", "by the cores"),
    ("--json", str, "FILE", "write all figures to FILE", "not written"),
    ("--plot", str, "FILE", "write a chart of the figures to FILE, a PNG", "not written"),
)
_OF_OBJECTS: _Rows = (
    ("--endpoint", str, "URL", "the server, by IP address for DALI", "as AWS_ENDPOINT_URL says"),
    ("--requests", _COUNT, "N", "requests of object-store under way at once", "the backend's"),
    ("--hedge", float, "SECONDS", "time after which to ask once more", "no reader"),
    ("--cache", str, "DIR", "local directory for the reader with a cache", "no reader"),
)
_FLAGS = {
    "--cold": "drop the page cache before every round; needs root",
    "--decode": "decode the images instead of reading only their headers",
    "--verify": "first compare bytes and labels with those of fn.readers.file",
    "--spin": f"{XNVME_BLOCK.name} polls for completions without pauses",
}
_SUMMARIES = {
    "compare": "run every reader that works here, in turn, on the same samples",
    "demo": "make JPEGs in ./demo; verify and time readers hot, cold and over S3",
    "containers": "compare readers of tars and TFRecord files, on DIR/shards",
    "objects": "compare readers of s3://, on copies of the files in DIR",
    **{leg.name: f"only this reader: {leg.summary}" for leg in LEGS},
}


def parser() -> argparse.ArgumentParser:
    """The parser. Options may precede or follow the command; those that follow it win."""
    top = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Compares how fast readers deliver samples to a DALI pipeline.",
        epilog="Options may precede or follow the command.",
    )
    _add_options(top)
    others = dict.fromkeys(("datadir", "json", "plot", "rounds", "threads", "readers", "endpoint"))
    others["situations"] = None
    top.set_defaults(**asdict(_DEFAULTS) | others, verify=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in _SUMMARIES.items():
        # Without SUPPRESS, its defaults would overwrite the options that precede the command.
        command = commands.add_parser(name, help=summary, argument_default=argparse.SUPPRESS)
        _add_options(command)
        if name in TABLES:
            legs = partial(_names, what="reader", known=[leg.name for leg in TABLES[name]])
            command.add_argument(
                "--readers", type=legs, metavar="READER,READER", help="run only these"
            )
        if name == "compare":
            known = partial(_names, what="situation", known=[*SITUATIONS])
            text = f"in these situations: all, or some of {', '.join(SITUATIONS)} (default: hot)"
            command.add_argument("--in", dest="situations", type=known, metavar="NAMES", help=text)
        if name == "objects":
            text = "where the files of DIR are, too: s3://bucket/prefix"
            command.add_argument("--url", required=True, metavar="URL", help=text)
            _add_rows(command, _OF_OBJECTS)
    return top


def _add_options(parser: argparse.ArgumentParser) -> None:
    _add_rows(parser, _OPTIONS)
    text = f"memory that {_BY_COMMANDS} read into; with gpu, all samples end there (default: cpu)"
    parser.add_argument("--mem", choices=("cpu", "pinned", "gpu"), help=text)
    text = "page-locked memory, for a pipeline with a GPU (default: auto, where it is possible)"
    parser.add_argument("--pinned", choices=("auto", "yes", "no"), help=text)
    for option, text in _FLAGS.items():
        parser.add_argument(option, action="store_true", help=text)


def _add_rows(parser: argparse.ArgumentParser, rows: _Rows) -> None:
    for option, convert, metavar, what, default in rows:
        name = option[2:].replace("batchsize", "batch_size").replace("-", "_")
        text = f"{what} (default: {default})"
        parser.add_argument(option, dest=name, type=convert, metavar=metavar, help=text)


def settings(options: argparse.Namespace) -> Settings:
    """The options that decide what is measured."""
    given = {setting.name: getattr(options, setting.name) for setting in fields(Settings)}
    given["rounds"] = options.rounds or (_DEFAULTS.rounds if options.command in TABLES else 1)
    given["threads"] = options.threads or min(usable_cores(), _MOST_THREADS)
    return Settings(**given)


def refuse_unused(settings: Settings, legs: Sequence[Leg]) -> None:
    """Refuse settings that no backend of the legs takes, with a BadInputError."""
    given = asdict(settings) | {"mem": settings.mem == "pinned"}  # gpu is for the consumer, too
    for name in ("bmap", "uri", "io", "mem", "queues", "spin", "copying_lanes"):
        if given[name] and not any(leg.takes(name) for leg in legs):
            takers = names_of(leg for leg in LEGS if leg.takes(name))
            option = f"--{name.replace('_', '-')}"
            raise BadInputError(f"{option} is for the readers {takers}, and none of them is to run")
