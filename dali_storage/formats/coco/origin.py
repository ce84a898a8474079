"""The origin of a dump: the file `made_of.json` beside the files of DALI.

Its entries are `options`, `annotations` (the state of the JSON file), and the CRC-32 of each of
the `files` of the dump. DALI ignores this file.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bmap_tools.atomic import destination, replacing

from ...contract import registry
from ...contract.catalog import open_regular
from ...contract.objects import scheme
from ...contract.remote import Remote, remote_of
from ..files import Files
from . import dump
from .options import DEFAULTS, CocoOptions

_FILE = "made_of.json"
_VERSION = 1
_OUTPUTS = "polygon_masks", "pixelwise_masks", "image_ids"  # a dump may have unrequested ones
_AGAIN = "make it again with python -m dali_storage index --coco"


@dataclass(frozen=True, slots=True)
class Source:
    """The JSON file of annotations.

    Attributes:
        name: its path, or the URL of an object.
        files: reads it.
    """

    name: bytes
    files: Files

    @classmethod
    def of(cls, name: bytes, remote: Remote | None = None) -> Source:
        """Return the source of a name; a lone URL is read by a backend without options."""
        if scheme(name) and remote is None:
            remote = remote_of(registry.load(registry.choose(None, [name])))
        return cls(name, Files(remote))

    def state(self) -> dict[str, Any]:
        """Return the size of the file, and its time or version."""
        if scheme(self.name):
            it = self.files.catalog([self.name])
            assert it.sizes is not None and it.versions is not None  # noqa: PT018
            return {"size": int(it.sizes[0]), "version": it.versions[0].decode("latin-1")}
        with open_regular(self.name) as file:
            status = os.fstat(file.fileno())
        return {"size": status.st_size, "mtime_ns": status.st_mtime_ns}

    def read(self) -> bytes:
        """Read all bytes."""
        with self.files.opened([self.name]) as opened:
            return next(opened).read()


def require_writable(target: str) -> None:
    """Raise OSError if `save()` cannot replace or remove a file of the directory `target`."""
    for name in (*dump.FILES, _FILE):
        destination(os.path.join(target, name))


def save(
    target: str, content: Mapping[str, bytes], options: CocoOptions, annotations: Mapping[str, Any]
) -> None:
    """Write a dump to the directory `target`, with its origin.

    `annotations` are the state of the source and its `checksum`. Several processes may write to one
    directory: `require_same()` refuses a mixed or incomplete dump, by the checksums.
    """
    for name in dump.FILES:
        there = os.path.join(target, name)
        if name in content:
            with replacing(there) as file:
                file.write(content[name])
        else:
            Path(there).unlink(missing_ok=True)  # of a dump with more
    record = {"version": _VERSION, "options": options.given(), "annotations": dict(annotations)}
    with replacing(os.path.join(target, _FILE)) as file:
        file.write(json.dumps(record | {"files": _checksums(content)}).encode())


def require_same(
    folder: str, content: Mapping[str, bytes], options: CocoOptions, source: Source | None
) -> CocoOptions:
    """Return the options for a dump with this content; refuse options that contradict the dump.

    If the `source` is given, the dump must be of these annotations.

    Raises:
        OSError: the directory or the annotations cannot be read.
        ValueError: the dump is incomplete, was changed, is of other annotations, or lacks an
            output; has the reason. Or DALI made the dump, and options are given that need a record.
    """
    origin = _read(folder)
    wanted = options.given()
    given = {name: it for name, it in wanted.items() if name not in _OUTPUTS}
    about = f"preprocessed_annotations={folder!r}"
    if origin is None:
        if given or source is not None:
            name, value = next(iter(given.items()), ("annotations_file", source and source.name))
            what = f"{name}={value!r} cannot be given with {about}, which DALI made"
            raise ValueError(f"{what} without a record of options; leave out {name}, or {_AGAIN}")
        return options
    made: dict[str, Any] = DEFAULTS | origin["options"]
    for name, value in given.items():
        if made[name] != value:
            what = f"{about} was made with {name}={made[name]!r}, not {value!r}"
            raise ValueError(f"{what}; leave out {name}, or {_AGAIN}")
    for name in filter(wanted.get, _OUTPUTS):
        if not (made[name] or (name == "polygon_masks" and made["pixelwise_masks"])):
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{about} was made without {name}; {_AGAIN} ... {option}")
    found = _checksums(content)
    for name in sorted({*found, *origin["files"]}):
        if found.get(name) != origin["files"].get(name):
            raise ValueError(f"{about}: {name} has changed since the dump was made; {_AGAIN}")
    known, state = origin["annotations"], source.state() if source else {}
    if source and not (
        state.items() <= known.items()
        or (
            state["size"] == known.get("size")
            and zlib.crc32(source.read()) == known.get("checksum")
        )
    ):
        what = f"annotations_file {os.fsdecode(source.name)!r} is not the source of {about}"
        raise ValueError(f"{what}; {_AGAIN}")
    return replace(options, ratio=made["ratio"])


def _read(folder: str) -> dict[str, Any] | None:
    """Read the origin in a directory; None if there is none."""
    path = os.path.join(folder, _FILE)
    try:
        found = json.loads(Path(path).read_bytes())
        if found["version"] == _VERSION:
            return {name: dict(found[name]) for name in ("options", "annotations", "files")}
    except FileNotFoundError:
        return None
    except (KeyError, RecursionError, TypeError, ValueError):
        pass
    raise ValueError(f"{path!r} is incomplete, or not of version {_VERSION}; {_AGAIN}")


def _checksums(content: Mapping[str, bytes]) -> dict[str, int]:
    """Return the CRC-32 of each file."""
    return {name: zlib.crc32(each) for name, each in content.items()}
