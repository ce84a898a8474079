"""Which samples `fn.readers.file` of DALI 2.4 finds, and their labels.

The rules are DALI's: `discover_files()` (loader/discover_files.cc) for a directory,
`FileLabelLoaderBase` (loader/file_label_loader.h) for lists and for which arguments go together,
`joinpath_bytes()` (loader/filesystem.h) for paths. Names are bytes: they need not be valid text.
"""

from __future__ import annotations

import operator
import os
import re
import stat
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EIO
from typing import Any, cast

import numpy as np

from .catalog import Catalog, Columns, Tree, from_names, join_path
from .errors import os_error
from .filters import Filters, Path, choice, elements, path_bytes

DEFAULT_FILE_FILTERS: tuple[str, ...] = (
    *("*.jpg", "*.jpeg", "*.png", "*.bmp", "*.tif", "*.tiff", "*.pnm", "*.ppm", "*.pgm", "*.pbm"),
    *("*.jp2", "*.webp", "*.flac", "*.ogg", "*.wav"),
)
"""What `fn.readers.file` takes for a sample when it is told nothing else."""

_LIST_LINE = re.compile(
    rb"""(?=.{0,16383}\n?\Z)               # what fits into DALI's getline() of 16 KiB
         (?:([^\0]*[^\s\0])\s+([0-9]+))?  # name and label, or a blank line
         \s*(?:\0.*)?                     # the NUL that ends a C string
    """,
    re.DOTALL | re.VERBOSE,
)


def discover(
    tree: Tree | None = None,
    *,
    file_root: Path | None = None,
    files: Path | Iterable[Path] | None = None,
    labels: int | Iterable[int] | None = None,
    file_list: Path | None = None,
    file_filters: Filters | None = DEFAULT_FILE_FILTERS,
    dir_filters: Filters | None = None,
    case_sensitive_filter: bool = False,
) -> Catalog:
    """The samples that `fn.readers.file` finds with these arguments; None is an argument not given.

    Without file_root, files and file_list they are those of `tree`, if there is one.

    Raises:
        ValueError: the arguments do not go together (FileLabelLoaderBase's rules).
        ValueError, OSError, TypeError: as from_files(), from_file_list() or from_tree().
    """
    if files is not None and file_list is not None:
        raise ValueError("files and file_list cannot both be given")
    if labels is not None and files is None:
        raise ValueError("labels can be given only together with files")
    if files is None and file_list is None:
        if file_root is not None:
            tree = _Directory(path_bytes("file_root", file_root))
        if tree is None:
            raise ValueError("one of file_root, files and file_list must be given")
        return from_tree(
            tree,
            file_filters=file_filters,
            dir_filters=dir_filters,
            case_sensitive_filter=case_sensitive_filter,
        )
    # DALI has no use for filters here, and refuses empty ones all the same.
    choice("file_filters", file_filters, case_sensitive_filter)
    choice("dir_filters", dir_filters, case_sensitive_filter)
    if file_list is not None:
        return from_file_list(file_list, file_root=file_root)
    return from_files(cast("Path | Iterable[Path]", files), labels, file_root=file_root)


def from_directory(
    file_root: Path,
    *,
    file_filters: Filters | None = DEFAULT_FILE_FILTERS,
    dir_filters: Filters | None = None,
    case_sensitive_filter: bool = False,
) -> Catalog:
    """The samples of `from_tree()`, in the directory `file_root` as the operating system lists it.

    Where a file system does not tell types DALI takes every entry for a file; this function looks.

    Raises:
        OSError: file_root, one of its entries or a class cannot be accessed; names it.
        ValueError: as from_tree().
    """
    return from_tree(
        _Directory(path_bytes("file_root", file_root)),
        file_filters=file_filters,
        dir_filters=dir_filters,
        case_sensitive_filter=case_sensitive_filter,
    )


def from_tree(
    tree: Tree,
    *,
    file_filters: Filters | None = DEFAULT_FILE_FILTERS,
    dir_filters: Filters | None = None,
    case_sensitive_filter: bool = False,
) -> Catalog:
    """The samples `root/<class>/<file>`, neither higher nor deeper, as discover_files() does.

    A class is a directory, or a link to one, that passes `dir_filters`; hidden ones too. Its label
    is its place among these in byte order, whether it has samples or not. A sample is a regular
    file, or a link to whatever, that passes `file_filters`; in byte order within its class.

    Args:
        tree: the directory.
        file_filters: patterns of glibc's fnmatch(), in the process's locale, one of which must
            match; None is the default.
        dir_filters: the same for classes; None is all.
        case_sensitive_filter: whether the case of letters counts, for both.

    Raises:
        ValueError: there are no samples, or a list of filters is empty.
    """
    file_filters = DEFAULT_FILE_FILTERS if file_filters is None else file_filters
    choose_files = choice("file_filters", file_filters, case_sensitive_filter)
    classes = choice("dir_filters", dir_filters, case_sensitive_filter)(tree.directories())
    columns = Columns()
    for label, directory in enumerate(sorted(classes)):
        names = sorted(choose_files(tree.files(directory)))
        columns.extend(directory + b"/", names, array("q", [label]) * len(names))
    if not columns.labels:
        raise ValueError(
            f"no files found under {os.fsdecode(tree.root)!r}: {len(classes)} of its "
            f"sub-directories pass dir_filters={dir_filters!r}, and no file directly in these "
            f"passes file_filters={file_filters!r}"
        )
    return columns.catalog(tree.root)


@dataclass(frozen=True, slots=True)
class _Directory:
    """The tree that the operating system lists."""

    root: bytes

    def directories(self) -> list[bytes]:
        """As in DALI, any entry that cannot be looked at is an error."""
        with _errors_named_as_text(), os.scandir(self.root) as entries:
            return [entry.name for entry in entries if stat.S_ISDIR(entry.stat().st_mode)]

    def files(self, directory: bytes) -> list[bytes]:
        """Regular files and links."""
        with _errors_named_as_text(), os.scandir(join_path(self.root, directory)) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_file(follow_symlinks=False) or entry.is_symlink()
            ]


@contextmanager
def _errors_named_as_text() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise os_error(error.errno or EIO, os.fsencode(error.filename)) from None


def from_file_list(file_list: Path, *, file_root: Path | None = None) -> Catalog:
    """The samples that a text file lists: in each line a name, white space, and a label.

    As in PrepareMetadataImpl(): a NUL ends its line; blank lines and white space at the end of a
    line are nothing; white space before and in a name belongs to it. A label is decimal digits,
    read as strtol() does (2**63 - 1 at most), of which the low 32 bits count. Nobody looks whether
    the files exist.

    Args:
        file_list: the text file.
        file_root: what names are joined to. None is what stands before the last slash of
            `file_list`: without a slash, and in "/list.txt", that is the current directory.

    Raises:
        OSError: the list cannot be read.
        ValueError: a line is not of this form or longer than 16383 bytes, or there are no samples.
    """
    path = path_bytes("file_list", file_list)
    root = path.rpartition(b"/")[0] if file_root is None else path_bytes("file_root", file_root)
    columns = Columns()
    with open(os.fsdecode(path), "rb") as lines:
        for number, line in enumerate(lines, 1):
            match = _LIST_LINE.fullmatch(line)
            if match is None:
                raise _bad_line(path, number, line)
            name, label = match.groups()
            if name is not None:
                columns.names += name
                columns.sizes.append(len(name))
                columns.labels.append(_strtol(label))
    if not columns.labels:
        raise ValueError(f"no files found in file_list {os.fsdecode(path)!r}")
    return columns.catalog(root)


def _strtol(digits: bytes) -> int:
    if len(digits) < 19:
        return int(digits)
    return min(int(digits.lstrip(b"0")[:20] or b"0"), 2**63 - 1)


def _bad_line(path: bytes, number: int, line: bytes) -> ValueError:
    return ValueError(
        f"file_list {os.fsdecode(path)!r}, line {number}: expected a file name, white "
        f"space and a label of decimal digits, in 16383 bytes at most; got {line!r}"
    )


def from_files(
    files: Path | Iterable[Path],
    labels: int | Iterable[int] | None = None,
    *,
    file_root: Path | None = None,
) -> Catalog:
    """The samples that the caller names. Nobody looks whether the files exist.

    Args:
        files: n names, or one.
        labels: n integers, or one, of which the low 32 bits count; None is 0 to n - 1.
        file_root: what names are joined to; None is the current directory.

    Raises:
        ValueError: there are no files, or not as many labels; a name is empty or has a NUL; a label
            has more than 64 bits (all labels would be lost in DALI).
    """
    names = [
        path_bytes("files", name) for name in elements("files", files, (str, bytes, os.PathLike))
    ]
    if not names:
        raise ValueError("files is an empty list")
    if impossible := [name for name in names if not name or b"\0" in name]:
        raise ValueError(f"files has {impossible[0]!r}, which no file can be called")
    numbers = array("q", range(len(names))) if labels is None else _integers("labels", labels)
    if len(numbers) != len(names):
        raise ValueError(f"Provided {len(numbers)} labels for {len(names)} files")
    return from_names(
        names, numbers, b"" if file_root is None else path_bytes("file_root", file_root)
    )


def _integers(option: str, value: Any) -> array[int]:
    numbers = elements(option, value, (int, np.integer))
    try:
        return array("q", map(operator.index, numbers))
    except TypeError:
        raise TypeError(f"{option} must be integers, not {value!r}") from None
    except OverflowError:
        raise ValueError(f"{option} must fit in 64 bits: {value!r}") from None
