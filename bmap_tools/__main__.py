"""`python -m bmap_tools`: make extent maps, compare them with the files, show them.

Exit status of create: 0 if all files are mapped, 1 if there is a map in which some are not, to be
read as files; of verify: 0 if all is as mapped, 1 if not. Of all: 2 if it could not be done, 130
after Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import create, show, verify
from .device import UnsupportedStorage
from .extent_map import MapFormatError
from .report import BadInputError, reason, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; answer the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except (BadInputError, UnsupportedStorage, MapFormatError) as error:
        say(str(error))
    except BrokenPipeError:  # `show | head`: what is left to write must not fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        say(f"{name}{reason(error)}")
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 2


def _run(options: argparse.Namespace) -> int:
    if options.command == "create":
        return create.run(options.root, options.output, threads=options.threads, old=options.legacy)
    if options.command == "verify":
        return verify.run(
            options.map,
            root=options.root,
            threads=options.threads,
            sample=options.sample,
            seed=options.seed,
            compare_bytes=options.bytes,
            uri=options.uri,
        )
    return show.run(options.map, name=options.path, plot=options.plot)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bmap_tools",
        description="Extent maps: where on a block device the files of a directory lie.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_create(commands.add_parser("create", help="make the map of a directory"))
    _add_verify(commands.add_parser("verify", help="compare a map with what there is now"))
    _add_show(commands.add_parser("show", help="show what a map holds"))
    return parser


def _add_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("root", help="the directory")
    parser.add_argument("-o", "--output", required=True, help="the file that becomes the map")
    parser.add_argument(
        "--legacy", metavar="OLD", help="map the files of a map of the prototype, if it is right"
    )
    _add_threads(parser)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("map", help="the map")
    parser.add_argument("--root", help="where its files are now, if not where they were")
    parser.add_argument(
        "--bytes", action="store_true", help="read the extents and the files, and compare"
    )
    parser.add_argument(
        "--uri", help="what --bytes reads: the device, its disk, or an image (default: the device)"
    )
    parser.add_argument("--sample", type=_count, metavar="N", help="only N files, by chance")
    parser.add_argument("--seed", type=int, default=0, help="of the chance (default: 0)")
    _add_threads(parser)


def _add_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("map", help="the map")
    parser.add_argument("path", nargs="?", help="only this file, by its path from the root")
    parser.add_argument("--plot", metavar="FILE", help="draw where on the device the files lie")


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=_count,
        default=2,  # each wants the interpreter lock: more are slower where storage answers at once
        help="how many look at files (default: %(default)s; more on storage that answers slowly)",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return count


if __name__ == "__main__":
    sys.exit(main())
