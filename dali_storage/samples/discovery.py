"""The samples of `fn.readers.file` and their labels.

The rules follow DALI's loader/discover_files.cc (directories), file_label_loader.h (lists, and
arguments that exclude each other) and filesystem.h (paths); `listing` has the rules of listings.
"""

from __future__ import annotations

import os
import re
import stat
from array import array
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any, TypeAlias, TypedDict, Unpack, cast

import numpy as np

from ..contract._types import PathLike
from ..contract.catalog import Catalog, CatalogBuilder, Tree, join_path
from ..contract.errors import named
from ..contract.objects import scheme
from ..contract.options import dali_flag, dali_integer
from .locations import file_names, is_index, local_path, location, require_known, require_urls
from .patterns import NameFilter, Patterns, as_list, compile_filters

IMAGE_FILTERS: tuple[str, ...] = (
    *("*.jpg", "*.jpeg", "*.png", "*.bmp", "*.tif", "*.tiff", "*.pnm", "*.ppm", "*.pgm", "*.pbm"),
    *("*.jp2", "*.webp"),
)
"""The name patterns of images in DALI."""

DEFAULT_FILE_FILTERS = (*IMAGE_FILTERS, "*.flac", "*.ogg", "*.wav")
"""The names that `fn.readers.file` accepts by default."""

Labels: TypeAlias = int | float | str | Iterable[int | float | str]
"""One label or several; text and fractions are converted by `int()`, as in DALI."""


class Filters(TypedDict, total=False):
    """The arguments of `fn.readers.file` that filter a directory.

    Attributes:
        file_filters: patterns of glibc's fnmatch(), in the process's locale, one of which must
            match; None is DEFAULT_FILE_FILTERS.
        dir_filters: the same for classes; None accepts all.
        case_sensitive_filter: whether upper and lower case differ, for both.
    """

    file_filters: Patterns | None
    dir_filters: Patterns | None
    case_sensitive_filter: bool | None


_LIST_LINE = re.compile(
    rb"""(?=.{0,16383}\n?\Z)               # the buffer of DALI's getline() has 16 KiB
         (?:([^\0]*[^\s\0])\s+([0-9]+))?  # name and label, or a blank line
         \s*(?:\0.*)?                     # the NUL that ends a C string
    """,
    re.DOTALL | re.VERBOSE,
)


def discover(
    known: Callable[[], Tree | None] = lambda: None,
    *,
    file_root: PathLike | None = None,
    files: PathLike | Iterable[PathLike] | None = None,
    labels: Labels | None = None,
    file_list: PathLike | None = None,
    **filters: Unpack[Filters],
) -> Catalog:
    """Find the samples of lists, or without lists of `known()`; see `finding.find`.

    Raises:
        ValueError: the arguments exclude each other, or there are no samples to find.
        ValueError, OSError, TypeError: as from_files(), from_file_list() or from_tree().
    """
    if files is not None and file_list is not None:
        raise ValueError("files and file_list cannot both be given")
    if labels is not None and files is None:
        raise ValueError("labels can be given only together with files")
    if files is None and file_list is None:
        if (tree := known()) is None:
            raise ValueError("one of file_root, files and file_list must be given")
        return from_tree(tree, **filters)
    chosen_by(**filters)  # DALI does not use them here, but checks them
    if file_root is not None and is_index(file_root):
        what = f"file_root must be a directory with files or file_list, not {file_root!r}"
        raise ValueError(f"{what}; an index already has names and labels, so leave out one of them")
    if file_list is not None:
        return from_file_list(file_list, file_root=file_root)
    return from_files(cast("PathLike | Iterable[PathLike]", files), labels, file_root=file_root)


def from_directory(file_root: PathLike, **filters: Unpack[Filters]) -> Catalog:
    """Find the samples of `from_tree()` in a `Directory`; an OSError names its path."""
    return from_tree(Directory(file_root), **filters)


def from_tree(tree: Tree, **filters: Unpack[Filters]) -> Catalog:
    """Find the samples `root/<class>/<file>`, neither higher nor deeper, as discover_files() does.

    A class is a directory, or a link to one, and passes `dir_filters`; hidden ones count. The label
    is the index among the classes in byte order, empty classes included. A sample is a regular
    file, or a link to anything, and passes `file_filters`; samples of a class are in byte order.

    Raises:
        ValueError: there are no samples, or a list of filters is empty.
    """
    choose_files, choose_classes = chosen_by(**filters)
    classes = sorted(choose_classes(tree.directories()))
    builder = CatalogBuilder()
    for label, directory in enumerate(classes):
        names = sorted(choose_files(tree.files(directory)))
        builder.extend(names, array("q", [label]) * len(names), prefix=directory + b"/")
    if not len(builder):
        what = f"no files found under {os.fsdecode(tree.root)!r} as CLASS/FILE"
        if not classes and isinstance(tree, Directory) and (own := choose_files(tree.files(b""))):
            parent = os.fsdecode(os.path.dirname(os.path.abspath(tree.root)))
            what += f", but {len(own):,} directly in it; if it is a class, use file_root={parent!r}"
            raise ValueError(f"{what} with all classes, or else the argument files")
        raise ValueError(
            f"{what}: {len(classes)} directories pass dir_filters={filters.get('dir_filters')!r}, "
            "and none of their files passes "
            f"file_filters={file_filters_of(filters.get('file_filters'))!r}"
        )
    return builder.build(tree.root)


def file_filters_of(file_filters: Patterns | None) -> Patterns:
    """Return the patterns of files, by default DALI's."""
    return DEFAULT_FILE_FILTERS if file_filters is None else file_filters


def chosen_by(
    file_filters: Patterns | None = None,
    dir_filters: Patterns | None = None,
    case_sensitive_filter: bool | None = False,
) -> tuple[NameFilter, NameFilter]:
    """Compile the filters of files and of classes."""
    with_case = dali_flag("case_sensitive_filter", case_sensitive_filter)
    return (
        compile_filters("file_filters", file_filters_of(file_filters), case_sensitive=with_case),
        compile_filters("dir_filters", dir_filters, case_sensitive=with_case),
    )


class Directory:
    """A local directory as a tree, listed again by each call; looks up entry types if needed."""

    def __init__(self, file_root: PathLike, scan: Callable[[bytes], Any] = os.scandir) -> None:
        """Raise ValueError or TypeError if `file_root` is not a local path."""
        self.root, self._scan = local_path("file_root", file_root), scan

    def directories(self) -> list[bytes]:
        """List directories and links to directories; as in DALI, an inaccessible entry raises."""
        with named(), self._scan(self.root) as entries:
            return [entry.name for entry in entries if stat.S_ISDIR(entry.stat().st_mode)]

    def files(self, directory: bytes) -> list[bytes]:
        """List regular files and links."""
        with named(), self._scan(join_path(self.root, directory)) as entries:
            return [e.name for e in entries if e.is_symlink() or e.is_file(follow_symlinks=False)]


def from_file_list(file_list: PathLike, *, file_root: PathLike | None = None) -> Catalog:
    """Return the samples of a text file: a name, white space and a label on each line.

    As in PrepareMetadataImpl(): a NUL ends its line; blank lines and white space at the end of a
    line are ignored; white space before and in a name is part of the name. A label is decimal
    digits, 2**63 - 1 at most, as for strtol(); its low 32 bits count. The files need not exist.

    Args:
        file_list: the text file.
        file_root: the directory of relative names, or a URL. None is the part of `file_list` before
            its last slash: the current directory without a slash, and for "/list.txt".

    Raises:
        OSError: the list cannot be read.
        ValueError: a line has another form or is longer than 16383 bytes; there are no samples; or
            from_files() would refuse the names.
    """
    path = local_path("file_list", file_list)
    root = path.rpartition(b"/")[0] if file_root is None else location("file_root", file_root)
    builder, urls = CatalogBuilder(), 0
    with named(path), open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            match = _LIST_LINE.fullmatch(line)
            if match is None:
                shown = "a URL alone" if b"://" in line else repr(line)
                raise ValueError(
                    f"file_list {os.fsdecode(path)!r}, line {number}: expected a file name, white "
                    f"space and a label of decimal digits, 16383 bytes at most, not {shown}"
                )
            name, label = match.groups()
            if name is not None:
                if b"://" in name:
                    urls += bool(require_known(f"line {number} of file_list", name))
                # Like strtol(). int() would refuse thousands of digits.
                builder.append(name, min(int(label.lstrip(b"0")[:20] or b"0"), 2**63 - 1))
    if not len(builder):
        raise ValueError(f"no files found in file_list {os.fsdecode(path)!r}")
    if urls:
        what = f"file_list {os.fsdecode(path)!r}"
        require_urls(what, urls, len(builder), None if file_root is None else root)
        root = b""
    return builder.build(root)


def from_files(
    files: PathLike | Iterable[PathLike],
    labels: Labels | None = None,
    *,
    file_root: PathLike | None = None,
) -> Catalog:
    """Return the samples of a list of names. The files need not exist.

    Args:
        files: n names, or one.
        labels: n labels, or one; their low 32 bits count. None is 0 to n - 1.
        file_root: the directory of relative names, or the URL. None is the current directory, or
            the names are URLs.

    Raises:
        ValueError: there are no files, or not as many labels; a name is empty, has a NUL or an
            unknown scheme; some names are URLs and others are not, or URLs come with a root; a
            label has more than 64 bits (DALI would drop all labels).
        TypeError: a name is not a path, or a label not a number.
    """
    names = file_names("files", files)
    numbers = array("q", range(len(names))) if labels is None else integers("labels", labels)
    if len(numbers) != len(names):
        raise ValueError(f"labels must match files: {len(numbers)} labels for {len(names)} files")
    root = b"" if file_root is None else location("file_root", file_root)
    if root and scheme(names[0]):
        require_urls("files", len(names), len(names), root)
    return Catalog.from_names(names, numbers, root)


def integers(argument: str, values: Labels) -> array[int]:
    """Convert one number or several to int64, by `int()`.

    Raises:
        TypeError: a value cannot be converted.
        ValueError: a value has more than 64 bits.
    """
    numbers = as_list(argument, values, (str, bytes, Number, np.bool_))
    try:
        return array("q", map(int, numbers))
    except (TypeError, ValueError, OverflowError):  # converted one by one, to name the wrong one
        return array("q", [dali_integer(argument, each) for each in numbers])
