"""`python -m dali_storage index --coco FILE -o DIR`: COCO annotations, checked and parsed.

DIR gets the files of DALI's `save_preprocessed_annotations`, and a record of their origin;
`readers.coco` and `fn.readers.coco` read DIR as `preprocessed_annotations`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from ..contract.errors import BackendUnavailable
from ..formats.coco.options import DEFAULTS, CocoOptions
from ..formats.coco.origin import Source
from ..formats.coco.parse import parse
from ..samples.locations import location


def main(arguments: Sequence[str]) -> int:
    """Write a dump; errors go to stderr. Returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        options = CocoOptions.of(vars(given))
        source = Source.of(location("--coco", given.coco))
        source.state()  # an error before a directory is made
        os.makedirs(given.output, exist_ok=True)
        if sys.stderr.isatty():
            print(f"parsing {given.coco!r}; this may take a minute", file=sys.stderr)
        names, found = parse(source, options, given.output)
    except (BackendUnavailable, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    images, objects = len(names), int(found.objects.starts[-1])
    print(f"{given.output!r}: {images:,} images with {objects:,} objects of {given.coco!r}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of this form."""
    made = argparse.ArgumentParser(
        prog="python -m dali_storage index",
        description="Check annotations of COCO and parse them once: "
        "readers.coco(preprocessed_annotations=DIR) then starts in a moment. "
        "The options are the arguments of readers.coco, and are stored in DIR.",
    )
    made.add_argument("--coco", required=True, metavar="FILE", help="the JSON file, or its URL")
    made.add_argument("-o", "--output", required=True, metavar="DIR", help="where to write")
    for name in DEFAULTS:
        option = "--" + name.replace("_", "-")
        if name == "images":
            made.add_argument(option, nargs="+", metavar="FILE_NAME")
        elif name == "size_threshold":
            made.add_argument(option, type=float, metavar="PIXELS")
        else:
            made.add_argument(option, action=argparse.BooleanOptionalAction)
    return made
