"""`readers.columns`: samples of several files, such as an image and its mask."""

import os
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias, Unpack

from ..contract._types import PathLike
from ..contract.catalog import Catalog, Tree, join_path
from ..contract.objects import scheme
from ..contract.remote import Remote
from ..formats.columns import Column, labels_column
from ..formats.files import Files
from ..formats.pieces import BYTES, Pieces
from ..reading.opening import Find
from ..samples import templates
from ..samples.locations import file_names, location, require_urls
from ..samples.patterns import PATH_TYPES, as_list
from .arguments import DaliArguments, Prepared, makes_reader, prepare
from .containers import with_names
from .plugs import Common

FilesOfOutput: TypeAlias = PathLike | Sequence[PathLike]
"""A template with one `{}`, or the file of each sample."""

_Found: TypeAlias = tuple[list[bytes], Find]


@makes_reader(samples=["files", "file_root", "keys", "labels", "missing"])
def columns(
    files: Mapping[str, FilesOfOutput] | Sequence[FilesOfOutput],
    *,
    file_root: PathLike | None = None,
    keys: PathLike | Sequence[PathLike] | None = None,
    labels: Column | None = None,
    missing: str = "error",
    **given: Unpack[DaliArguments],
) -> Prepared[Any]:
    """Samples of several files each: image and mask, left and right, low and high resolution.

    The order and all other arguments are as in `readers.file`.

    Args:
        files: for each output a template, or for each output a list of files; as a list or a dict.
            A template is a path or URL with one `{}`, which stands for any text, also with slashes:
            the key of a sample. `["images/{}.jpg", "masks/{}.png"]` are the two files of each key.
            Lists of files have one length: sample i is number i of each. Templates are matched in a
            mounted file system or an object store. For samples in rows, `zip(*rows)` makes lists.
        file_root: the directory or URL for relative templates and files.
        keys: for templates: the keys of the samples, in their order; keys may repeat. By default
            all existing keys, in the order of their bytes. Or a text file with one key per line,
            without surrounding white space: a path, possibly relative to `file_root`, or a URL.
        labels: a label for each of `keys`, or of the files in a list, as in `readers.records`. By
            default there are no labels.
        missing: for a key without a file for some template. "error": refuse the key. "skip": leave
            the key out. Skipped keys also have a label; `weights` and `order` count the remaining
            samples.

    Returns:
        A tuple of the outputs, label and index; or, if `files` is a dict, a dict of the outputs, in
        a tuple with label and index if these are requested.

        * outputs: uint8, 1-D, in host memory shared with DALI, or in GPU memory. Files of up to
          4 KiB with one size are copied.
        * label: int32, shape (1,), with `labels`.
        * index: int64, shape (1,), with return_index.

    Raises:
        ValueError, TypeError: an argument is wrong; a key lacks a file, or no sample is left. The
            message has the argument or the path. A missing file of a list is an error of the
            running pipeline.
        OSError: a directory or the file of keys cannot be read, or a URL cannot be listed.
        BackendUnavailable, RuntimeError: as `readers.file`, like all errors of the pipeline.
    """
    common = Common(**given)
    every = files if isinstance(files, Mapping) else enumerate(as_list("files", files, PATH_TYPES))
    entries = {f"files[{name!r}]": each for name, each in dict(every).items()}
    of_templates = [isinstance(each, PATH_TYPES) for each in entries.values()]
    if not entries or any(of_templates) != all(of_templates):
        what = "files must have an entry for each output, all templates or all lists of files"
        raise ValueError(f"{what}, not {files!r:.80}")
    if missing not in ("error", "skip"):
        raise ValueError(f"missing must be 'error' or 'skip', not {missing!r}")
    root = b"" if file_root is None else location("file_root", file_root)
    if any(of_templates):
        firsts, find = _by_templates(entries, root, keys, labels, skip=missing == "skip")
    elif keys is not None or missing != "error":
        raise ValueError("keys and missing are for templates, but files are lists")
    else:
        firsts, find = _by_lists(entries, root, labels)
    if urls := len([*filter(scheme, firsts)]):
        require_urls("files", urls, len(firsts), root or None)
    fmt = Pieces("columns", "Columns", [BYTES] * len(entries), labels=labels is not None)
    prepared = prepare(common, find, fmt, names=[root or firsts[0]])
    if isinstance(files, Mapping):
        return prepared.returning(partial(with_names, files))
    return prepared


def _by_templates(
    given: Mapping[str, Any], root: bytes, keys: Any, labels: Column | None, *, skip: bool
) -> _Found:
    """The fixed beginnings of all templates, and a function that finds the samples."""
    path = b""
    parsed = [templates.Template.parse(name, each) for name, each in given.items()]
    firsts = [each.before for each in parsed]
    if labels is not None and keys is None:
        raise ValueError("labels of templates need keys: give a key for each label")
    if isinstance(keys, PATH_TYPES):
        (path,) = file_names("keys", keys)
        if not path.startswith(b"/") and not scheme(path):
            path = join_path(root, path)
    elif keys is not None:
        keys = templates.checked_keys("keys", as_list("keys", keys, ()))

    def find(tree: Callable[[], Tree | None], remote: Remote | None) -> Catalog:
        is_placed = root or all(each.startswith(b"/") or scheme(each) for each in firsts)
        if not is_placed and tree() is not None:
            what = "file_root must be the mounted directory of the templates"
            raise ValueError(f"{what}: a map of extents cannot be listed; or give lists of files")
        wanted, source = keys, f" in {os.fsdecode(path)!r}" if path else ""
        if path:
            with Files(remote).opened([path]) as opened:
                lines = next(opened).read().removeprefix(BOM_UTF8).split(b"\n")
            wanted = templates.checked_keys(f"keys{source}", filter(None, map(bytes.strip, lines)))
        numbers = None if labels is None else labels_column(labels, len(wanted))
        return templates.find(parsed, root, wanted, numbers, source, skip=skip, remote=remote)

    return firsts, find


def _by_lists(given: Mapping[str, Any], root: bytes, labels: Column | None) -> _Found:
    """The first file of each list, and a function that makes the samples."""
    lists = [file_names(name, each) for name, each in given.items()]
    if len({*map(len, lists)}) > 1:
        counts = ", ".join(f"{n} has {len(it):,}" for n, it in zip(given, lists, strict=True))
        raise ValueError(f"files must be lists of one length: {counts}")

    def find(tree: Callable[[], Tree | None], remote: Remote | None) -> Catalog:
        names = [name for row in zip(*lists, strict=True) for name in row]
        numbers = () if labels is None else labels_column(labels, len(lists[0]))
        return replace(Catalog.from_names(names, numbers, root), pieces=len(lists))

    return [each[0] for each in lists], find
