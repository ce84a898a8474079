"""The options that name a reader and its samples, for commands that open one."""

import argparse
import json
import os
from typing import Any

from .. import readers
from ..contract.errors import BackendUnavailable
from ..readers.arguments import spec_of
from ..reading.opening import Opening
from .index_samples import key_and_value

ERRORS = BackendUnavailable, ImportError, MemoryError, OSError, TypeError, ValueError  # of opening


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("paths", metavar="PATH", nargs="*", help="a directory, URL or index; or tar files")
    add("--reader", metavar="NAME", help="of `readers`; default: file, or webdataset for *.tar")
    add_argument(parser)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for arguments of the reader."""
    text = "of the reader, such as ext=jpg; VALUE is JSON or text"
    several: Any = {"nargs": "+", "action": "extend", "default": [], "metavar": "KEY=VALUE"}
    parser.add_argument("--argument", type=key_and_value, **several, help=text)


def loaded(path: str) -> Any:
    """Return what is in a file of JSON; ValueError names the path."""
    with open(path, "rb") as file:
        try:
            return json.load(file)
        except (RecursionError, ValueError) as error:
            raise ValueError(f"{path!r} is not JSON: {error}") from None


def described(given: argparse.Namespace) -> dict[str, Any]:
    """Return the reader and its arguments in plain types, for `opening_of()`."""
    paths = [it if "://" in it else os.path.abspath(it) for it in given.paths]
    tars = bool(paths) and paths[0].endswith(".tar")
    reader = given.reader or ("webdataset" if tars else "file")
    spec = getattr(getattr(readers, reader, None), "spec", None)
    names = [it for it in ("path", "paths") if spec and it in spec.samples] or ["file_root"]
    found: Any = paths if len(paths) > 1 or names == ["paths"] else "".join(paths)
    named = {names[0]: found} if paths else {}
    return {"reader": reader, "arguments": named | dict(given.argument)}


def opening_of(reader: str, arguments: dict[str, Any]) -> Opening:
    """Return how to open a reader. No sample depends on the `features` of tfrecord: they may lack.

    Raises:
        ValueError, TypeError: there is no such reader, or an argument is wrong.
    """
    if not hasattr(getattr(readers, reader, None), "spec"):
        raise ValueError(f"readers has no {reader!r}")
    if "tfrecord" in (reader, arguments.get("reader")):
        from nvidia.dali import tfrecord

        features = {"features": {"any": tfrecord.VarLenFeature(tfrecord.int64, 0)}}
        if reader != "tfrecord":  # but mix
            features = {"format_options": arguments.get("format_options", {}) | features}
        arguments = arguments | features
    opening: Opening = spec_of(getattr(readers, reader)).prepare(**arguments).opening
    return opening
