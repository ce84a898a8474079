"""`python -m bmap_tools`: create extent maps, verify them against the files, show them.

Exit status of create: 0 if all files are mapped, 1 if the map marks some files to be read as
files. Of verify: 0 if all files match the map, 1 if not. Of all commands: 2 after a failure, 130
after Ctrl-C.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from . import create, show, verify
from .bmap_json import MapFormatError
from .console import BadInputError, print_message, reason
from .device import UnsupportedStorage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line. Returns the exit status."""
    options = vars(parser().parse_args(arguments))
    command = {"create": create, "verify": verify, "show": show}[options.pop("command")]
    try:
        return int(command.run(**options))
    except (BadInputError, UnsupportedStorage, MapFormatError) as error:
        print_message(str(error))
    except OSError as error:
        name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
        print_message(f"{name}{reason(error)}")
    except KeyboardInterrupt:
        print_message("interrupted")
        return 130
    return 2


def parser() -> argparse.ArgumentParser:
    """Make the argument parser of `python -m bmap_tools`."""
    parser = argparse.ArgumentParser(
        prog="python -m bmap_tools",
        description="Extent maps: the locations of a directory's files on a block device.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser("create", help="map the files of a directory")
    create.add_argument("root", help="the directory")
    create.add_argument("-o", "--output", required=True, help="the map to write")
    _add_threads(create)
    _add_verify(commands.add_parser("verify", help="compare a map with the current files"))
    show = commands.add_parser("show", help="describe a map or one of its files")
    show.add_argument("path", metavar="map", help="the map")
    path = "show only this file, by its path from the root"
    show.add_argument("name", metavar="path", nargs="?", help=path)
    return parser


def _add_verify(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="map", help="the map")
    add("--root", help="the current directory of the files (default: the mapped one)")
    add(
        "--bytes",
        action="store_true",
        dest="compare_bytes",
        help="also compare the bytes of the extents with the files",
    )
    add("--uri", help="the device, disk or image that --bytes reads (default: the device)")
    add("--sample", type=_count, metavar="N", help="check a random sample of N files")
    add("--seed", type=int, default=0, help="seed of the random sample (default: %(default)s)")
    _add_threads(parser)


def _add_threads(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=_count,
        default=2,  # threads share the interpreter lock: more are slower on fast storage
        help="threads that inspect files (default: %(default)s; more help on slow storage)",
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return count


if __name__ == "__main__":
    sys.exit(main())
