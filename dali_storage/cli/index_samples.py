"""`python -m dali_storage index ROOT -o INDEX`: the index of a directory or of a prefix of objects.

`index_file` defines the format; `readers.file(file_root=INDEX)` reads the index.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from bmap_tools.atomic import destination
from bmap_tools.console import print_result

from ..contract import registry
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.faces import explained
from ..contract.objects import scheme
from ..contract.remote import Remote, remote_of
from ..samples import discovery, index_file, listed
from ..samples.locations import location

FILTERS = "file_filters", "dir_filters", "case_sensitive_filter"
_USAGE = """%(prog)s FILE... [-o DIR]
       %(prog)s URL.parquet... -o DIR [--backend-option KEY=VALUE...]
       %(prog)s ROOT -o INDEX [options]
       %(prog)s --verify INDEX...
       %(prog)s --coco FILE -o DIR [options]"""
new_parser = partial(argparse.ArgumentParser, prog="python -m dali_storage index", usage=_USAGE)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for a root of samples."""
    group = parser.add_argument_group("samples", "for ROOT; filters as in readers.file")
    add_filters(group)
    add_backend_options(group)


def add_backend_options(group: argparse._ActionsContainer) -> None:
    """Add the options of a backend, for URLs."""
    group.add_argument(
        "--backend-option",
        type=key_and_value,
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="of the backend object-store, for a URL, such as endpoint=http://127.0.0.1:9000; "
        "VALUE is JSON or text",
    )


def add_filters(group: argparse._ArgumentGroup) -> None:
    """Add the options of `FILTERS`."""
    for name in FILTERS[:2]:
        option = "--" + name.replace("_", "-")
        group.add_argument(option, nargs="+", action="extend", metavar="GLOB")
    group.add_argument("--case-sensitive-filter", action="store_true")


def is_root(name: str) -> bool:
    """Return whether a name is a root of samples, not a container."""
    return bool(scheme(os.fsencode(name))) or os.path.isdir(name)


def main(words: Sequence[str]) -> int:
    """Write the index of a root; errors go to stderr. Returns the exit status."""
    given = parser().parse_args(words)
    root, filters = given.root, {name: getattr(given, name) for name in FILTERS}
    try:
        destination(given.output)  # refuses what is no file before the listing, which may be slow
        location("ROOT", root)  # refuses a URL with a password before it is shown
        if sys.stderr.isatty():
            print(f"listing {root!r}; this may take minutes", file=sys.stderr)
        catalog = _list(root, dict(given.backend_option), filters)
        if given.exclude is not None:
            with explained():
                from ..bad_samples.exclusion import without
            catalog = without(catalog, given.exclude)
        index_file.save(catalog, given.output, listed.filters_as_text(**filters))
    except (BackendUnavailable, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    classes = len(np.unique(catalog.labels))
    print_result(f"{given.output!r}: {len(catalog):,} samples of {classes:,} classes in {root!r}")
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the form ROOT -o INDEX, whose help is that of all forms."""
    made = new_parser(
        description="Make the index of each FILE, a container, beside it or in DIR; its first "
        "bytes show its kind. Or make one INDEX of the samples in the class directories of ROOT, a "
        "directory or a URL: readers.file(file_root=INDEX) then opens without a listing. Or "
        "compare an INDEX with its CRCs. Or check and parse COCO: see --coco FILE --help.",
    )
    made.add_argument("root", metavar="ROOT", help="a directory or a URL")
    made.add_argument("-o", "--output", required=True, metavar="INDEX", help="where to write")
    add_options(made)
    leave_out = "samples to leave out: a list by `python -m dali_storage check`"
    made.add_argument("--exclude", metavar="FILE", help=leave_out)
    return made


def verify(words: Sequence[str]) -> int:
    """Compare indexes with their CRCs; errors go to stderr. Returns the exit status."""
    parser = new_parser()
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("files", nargs="+", metavar="INDEX")
    failed = 0
    for file in parser.parse_args(words).files:
        try:
            index = index_file.CatalogFile(file)
            index.verify()
            print_result(
                f"{file!r}: {len(index.catalog()):,} samples, undamaged; files were not read"
            )
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            failed += 1
    return 1 if failed else 0


def remote(url: str, options: dict[str, Any]) -> Remote | None:
    """Return the access to the store of a URL; ValueError if it has a password."""
    location("URL", url)
    backend = registry.configure(registry.choose(None, [os.fsencode(url)]), options)
    return remote_of(backend, **options)


def _list(root: str, options: dict[str, Any], filters: dict[str, Any]) -> Catalog:
    if scheme(os.fsencode(root)):
        return listed.from_store(remote(root, options), root, **filters)
    if options:
        raise ValueError(f"{root!r} is a directory; --backend-option is only for a URL")
    return discovery.from_directory(os.path.abspath(root), **filters)


def key_and_value(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE; a type of arguments for argparse."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")
    with contextlib.suppress(ValueError):
        return key, json.loads(value)
    return key, value
