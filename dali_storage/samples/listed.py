"""The samples of `fn.readers.file` in an index, and in the listing of an object store."""

from __future__ import annotations

import os
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.objects import scheme
from ..contract.options import dali_flag
from ..contract.remote import Remote
from .discovery import Filters, chosen_by, file_filters_of
from .index_file import CatalogFile
from .listing import choose_samples, select
from .locations import location
from .patterns import PATH_TYPES, Patterns, as_list, path_bytes

_LISTED = "s3", "gs", "az"  # web servers have no lists


def from_store(remote: Remote | None, file_root: PathLike, **filters: Unpack[Filters]) -> Catalog:
    """Find the samples below a URL, as discover_files_s3.cc does in the listing of objects.

    Samples are the objects `root/<class>/<file>` in byte order of their keys. A class gets a label
    when its first sample appears. An object directly in the root is a sample, too, in a class of
    its own; in gs, as in DALI, such an object is ignored. So labels may differ from the same tree
    on disk. The catalog has sizes and versions.

    Unlike in DALI, rejected classes are not listed, the root may be a bucket, and the markers of
    directories are not samples.

    Raises:
        OSError: a request to the store fails; names the URL.
        ValueError: as from_tree(); or there is no store to list.
    """
    root = location("file_root", file_root)
    choose_files, choose_classes = chosen_by(**filters)
    listing = require_remote(root, remote).listing(root, choose_classes)
    samples = choose_samples(listing, choose_classes, choose_files, alone=scheme(root) != "gs")
    if not samples.objects.size:
        raise ValueError(
            f"no files found under {os.fsdecode(root)!r} as CLASS/FILE: "
            f"{len(samples.classes)} classes pass dir_filters={filters.get('dir_filters')!r}, "
            f"and none of {len(listing.sizes)} objects in them or in the root passes "
            f"file_filters={file_filters_of(filters.get('file_filters'))!r}"
        )
    names, offsets = select(listing, samples.objects)
    sizes, versions = listing.sizes[samples.objects], listing.versions[samples.objects]
    return Catalog(root, names, offsets, samples.labels, sizes=sizes, versions=versions)


def require_remote(root: bytes, remote: Remote | None) -> Remote:
    """Return the lister of the objects below a URL; raise ValueError if there is none."""
    if scheme(root) not in _LISTED:
        what = f"file_root {os.fsdecode(root)!r}: a web server does not list its files"
        raise ValueError(f"{what}; name them by files or file_list")
    if remote is None:
        what = f"file_root {os.fsdecode(root)!r}: the backend cannot list objects"
        raise ValueError(f"{what}; use backend='object-store'")
    return remote


def from_index(index: PathLike, **filters: Unpack[Filters]) -> Catalog:
    """Return the samples of an index, in its order; see `index_file`.

    Each filter must be the default or equal the filter of the index.

    Raises:
        OSError: the index cannot be read.
        ValueError: the file is not an index, the index is damaged, or a filter differs.
    """
    file = CatalogFile(index)
    defaults = filters_as_text()
    for name, value in filters_as_text(**filters).items():
        if value not in (defaults[name], made := file.filters.get(name)):
            what = f"{name}={value!r}, but index {file.path!r} was made with {name}={made!r}"
            raise ValueError(f"{what}; leave {name} out, or make another index")
    return file.catalog()


def filters_as_text(
    file_filters: Patterns | None = None,
    dir_filters: Patterns | None = None,
    case_sensitive_filter: bool | None = False,
) -> dict[str, Any]:
    """Return `Filters` as an index stores them."""

    def text(argument: str, patterns: Patterns) -> list[str]:
        listed = as_list(argument, patterns, PATH_TYPES)
        return [path_bytes(argument, each).decode("utf-8", "surrogateescape") for each in listed]

    return {
        "file_filters": text("file_filters", file_filters_of(file_filters)),
        "dir_filters": None if dir_filters is None else text("dir_filters", dir_filters),
        "case_sensitive_filter": dali_flag("case_sensitive_filter", case_sensitive_filter),
    }
