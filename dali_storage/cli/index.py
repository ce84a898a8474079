"""`python -m dali_storage index`, in four forms: this one is `FILE... [-o DIR]`, for containers.

A directory or a URL is not a container, except for a directory with the `data.mdb` of an LMDB, a
URL that ends in `.parquet`, and a name of a hub, hf://...: `index_samples` makes the index of the
samples below, and verifies it. `index_coco` parses annotations.

The first bytes of a container show its kind. The index has DALI's format (LMDB and Parquet files,
for which DALI has no format, have our own), and is written beside the container or to DIR: `x.tar`
has the index `x.idx`; other names get `.idx` appended. An old index is replaced when the new one is
complete. The exit status is 0 if every file has an index now, else 1.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from bmap_tools import console
from bmap_tools.atomic import replacing
from bmap_tools.console import Tick

from ..contract.catalog import open_regular
from ..contract.errors import BackendUnavailable
from ..contract.faces import explained
from ..contract.objects import scheme
from ..contract.remote import Known, knowing
from ..formats.files import Files, compressed
from . import index_samples, shards

_NO_OPTIONS: Mapping[str, Any] = {}
_HEAD = 512  # bytes of a container, which show its kind


class Kind(NamedTuple):
    """A kind of container."""

    name: str
    extensions: tuple[str, ...]  # which ".idx" replaces
    # Whether a file begins with 512 bytes of one; the lines of its index.
    functions: Callable[[], tuple[Callable[[bytes], bool], Callable[..., Iterable[bytes]]]]


def _of_tars() -> Any:
    from ..formats.tar import archive, index

    return archive.matches, index.index


def _of_lmdbs() -> Any:
    from ..formats.lmdb import index, pages

    return pages.matches, index.index


def _of_tfrecords() -> Any:
    from ..formats.tfrecord import index

    return index.matches, index.index


def _of_tables() -> Any:
    from ..formats.parquet.index import matches

    def lines(path: bytes, tick: Tick, **given: Any) -> Iterable[bytes]:
        with explained():
            from ..formats.parquet.catalog import index  # needs pyarrow
        return index(path, tick, **given)

    return matches, lines


KINDS = (
    Kind("tar", (".tar",), _of_tars),
    # Before TFRecord, for which the first 8 bytes of an LMDB, the page number 0, are a length.
    Kind("LMDB", (".mdb", ".lmdb"), _of_lmdbs),
    Kind("Parquet", (".parquet",), _of_tables),
    Kind("TFRecord", (".tfrecord", ".tfrecords"), _of_tfrecords),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the form that the arguments have. Errors go to stderr; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = {word.partition("=")[0] for word in words}
    if "--coco" in options:
        with explained():
            from .index_coco import main as parse_coco
        return parse_coco(words)
    if "--verify" in options:
        return index_samples.verify(words)
    parser = index_samples.new_parser(add_help=False)
    parser.add_argument("files", nargs="*")
    parser.add_argument("-o", "--output")
    index_samples.add_backend_options(parser)
    given, others = parser.parse_known_args(words)
    try:
        names, known = of_hub(given.files)
        files = [*map(_container, names)]
        of_others = [*filter(None, map(shards.find, files))]
    except (BackendUnavailable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for found in of_others:
        what = f"a data set by {found.writer} needs no index of ours"
        print(f"error: {found.directory!r}: {what}; use readers.{found.call})", file=sys.stderr)
        return 1
    urls = [file for file in files if _is_table(file)]
    if other := [file for file in files if os.fsencode(file) in known and file not in urls]:
        what = "of the hub, only files whose names end in .parquet get an index"
        print(
            f"error: {other[0]!r}: {what}; download the others, and index the copies",
            file=sys.stderr,
        )
        return 1
    is_root = any(index_samples.is_root(file) for file in files if file not in urls)
    # Containers have no other options.
    if others or not files or is_root or (given.backend_option and not urls):
        return index_samples.main(words)
    if urls and given.output is None:
        parser.error("the index of a URL needs -o DIR")
    targets: dict[str, str] = {}
    for file in files:
        if file != targets.setdefault(target := _target(file, given.output), file):
            what = f"{targets[target]!r} and {file!r} share the index {target!r}"
            parser.error(f"{what}; index them one by one, with -o")
    return _write_all(targets, dict(given.backend_option), known)


def _write_all(
    targets: Mapping[str, str], options: Mapping[str, Any], known: Mapping[bytes, Known]
) -> int:
    """Write an index for each container, keyed by the index; return the exit status."""
    failed = done = 0
    with console.bar("", sum(map(_size, targets.values())), of_bytes=True) as tick:
        for target, file in targets.items():
            try:
                write(file, target, tick, done, options, known.get(os.fsencode(file)))
                console.print_result(f"{target!r}: the index of {file!r}")
            except (BackendUnavailable, OSError, TypeError, ValueError) as error:
                print(f"error: {error}", file=sys.stderr)
                failed += 1
            done += _size(file)
    return 1 if failed else 0


def write(
    file: str,
    target: str,
    tick: Tick,
    done: int = 0,
    options: Mapping[str, Any] = _NO_OPTIONS,
    known: Known | None = None,
) -> None:
    """Write the index of `file` to the path `target`; `tick` gets `done` plus the bytes read.

    `options` are those of the backend, for a URL; `known` is what is known of it.

    Raises:
        ValueError: the file is not a container of a known kind, or is damaged.
        OSError: the file cannot be read, or the index cannot be written.
    """
    of_table = _is_table(file)
    _, lines = (_of_tables if of_table else kind_of(file).functions)()
    remote = index_samples.remote(file, dict(options)) if of_table else None
    # The target is opened first: finding the values may take minutes.
    its = {os.fsencode(file): known} if known else {}
    with replacing(target) as index, knowing(remote, its) as access:
        lines = partial(lines, files=Files(access)) if of_table else lines
        index.writelines(lines(os.fsencode(file), lambda position: tick(done + position)))


def kind_of(file: str) -> Kind:
    """Return the kind of a container, by its first bytes; ValueError for another file."""
    with open_regular(os.fsencode(file)) as container:
        head = container.read(_HEAD)
    missing = list[BackendUnavailable]()
    for kind in KINDS:
        try:
            with explained():
                matches, _ = kind.functions()
        except BackendUnavailable as error:
            missing.append(error)
        else:
            if matches(head):
                return kind
    *others, last = (kind.name for kind in KINDS)
    why = compressed(head) if head else "it is empty"
    raise ValueError(
        f"{file!r} is not a {', '.join(others)} or {last} file"
        + (f"; {why}" if why else "; give a container, a directory or a URL")
        + "".join(f"; {error}" for error in missing)
    )


def of_hub(files: Sequence[str]) -> tuple[Sequence[str], Mapping[bytes, Known]]:
    """Return the files, with URLs for names of the hub, and what is known of these."""
    if not any(file.startswith("hf://") for file in files):
        return files, {}
    with explained():
        from ..samples.hub import find
    names, known = find([*map(os.fsencode, files)])
    return [*map(os.fsdecode, names)], known


def _is_table(file: str) -> bool:
    """Return whether a name is the URL of a Parquet file."""
    return bool(scheme(os.fsencode(file))) and file.endswith(".parquet")


def _container(file: str) -> str:
    """Return the path of a file or root, or of the file in the directory of an LMDB."""
    inner = os.path.join(file, "data.mdb")
    return inner if os.path.isfile(inner) else file


def _target(file: str, directory: str | None) -> str:
    stem, extension = os.path.splitext(file)
    known = any(extension.lower() in kind.extensions for kind in KINDS)
    target = (stem if known else file) + ".idx"
    if directory is not None:
        target = os.path.join(directory, os.path.basename(target))
    return os.path.realpath(target)  # one spelling for each


def _size(file: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(file).st_size
    return 0
