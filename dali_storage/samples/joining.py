"""Joins several catalogs into one."""

import os
import warnings
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray
from ..contract.catalog import Catalog, CatalogBuilder
from ..contract.objects import scheme
from ..contract.ranges import Ranges


def join(sources: Mapping[str, Catalog], labels: str | None) -> Catalog:
    """Join the samples of all sources, one source after another.

    Args:
        sources: catalogs by their names in messages; at least one.
        labels: "own": the labels of the sources. "joint": numbers of the class names of all,
            sorted as bytes; each sample has its class directory in its name. None: as "own", with
            a warning if sources share labels.

    Raises:
        ValueError: some sources have files and others ranges, or not all have labels; or "joint"
            labels are not known.
    """
    catalogs = [*sources.values()]
    _require_alike(sources)
    root = _common_root(catalogs)
    builder = CatalogBuilder()
    for each in catalogs:
        below = each if root is None else replace(each, root=_below(each.root, root))
        # Labels belong to samples; these entries are for files.
        paths = below.file_paths(np.arange(each.file_count))
        builder.extend(paths, [0] * len(paths))
    names = builder.build(root or b"")
    sizes = [each.sizes for each in catalogs]
    versions = [each.versions for each in catalogs]
    states = [
        np.zeros((each.file_count, 4), np.int64) if each.states is None else each.states
        for each in catalogs
    ]
    guards, first = dict[int, Sequence[tuple[int, bytes]]](), 0
    for each in catalogs:
        guards |= {first + file: content for file, content in (each.guards or {}).items()}
        first += each.file_count
    joined = Catalog(
        names.root,
        names.names,
        names.offsets,
        _labels(sources, labels),
        ranges=_ranges(catalogs),
        pieces=catalogs[0].pieces,
        sizes=None if any(it is None for it in sizes) else np.concatenate(sizes),  # type: ignore[arg-type]
        versions=None if any(it is None for it in versions) else np.concatenate(versions),  # type: ignore[arg-type]
        states=np.concatenate(states)
        if any(each.states is not None for each in catalogs)
        else None,
        guards=guards or None,
        source_info=None
        if catalogs[0].source_info is None
        else [it for each in catalogs for it in each.source_info or ()],
    )
    if "crc32" in catalogs[0].sidecar:
        joined.sidecar["crc32"] = np.concatenate([it.sidecar["crc32"] for it in catalogs])
    if "layout" in catalogs[0].sidecar:
        joined.sidecar["layout"] = catalogs[0].sidecar["layout"]
    if labels == "joint":
        joined.sidecar["joint"] = True  # for receipts
    # As for its parts, the checksum does not depend on the location of the roots.
    parts = [each.checksum() for each in catalogs]
    return joined.knowing(zlib.crc32(joined.labels.tobytes() + np.array(parts, "<u4").tobytes()))


def _common_root(catalogs: list[Catalog]) -> bytes | None:
    """Return the directory above all roots; None if they are URLs, or names have no root.

    If the file system is mounted elsewhere, an extent map finds files by their paths below this
    directory.
    """
    roots = [each.root for each in catalogs]
    if not all(roots) or any(map(scheme, roots)):
        return None
    return os.path.commonpath([os.path.abspath(root) for root in roots])


def _below(root: bytes, common: bytes) -> bytes:
    path = os.path.relpath(os.path.abspath(root), common)
    return b"" if path == b"." else path


def _require_alike(sources: Mapping[str, Catalog]) -> None:
    first, *others = sources
    for other in others:
        one, two = sources[first], sources[other]
        if (one.ranges is None, one.pieces) != (two.ranges is None, two.pieces):
            raise ValueError(
                f"sources {first!r} and {other!r} have different kinds of samples; mix only files, "
                "or only ranges, with the same number of pieces"
            )
        if one.sidecar.get("layout") != two.sidecar.get("layout"):
            what = f"sources {first!r} and {other!r} have other columns, or encodings"
            raise ValueError(f"{what}; give each the option `columns` itself")
        if bool(one.labels.size) != bool(two.labels.size):
            raise ValueError(f"sources {first!r} and {other!r}: only one of them has labels")
        if (one.versions is None) != (two.versions is None):
            raise ValueError(
                f"sources {first!r} and {other!r}: only one of them has a listing, with which "
                "objects are compared; give both as file_root, or both by names"
            )
    for name, catalog in sources.items():
        if not catalog.delivered:
            raise ValueError(f"source {name!r} has no samples")


def _ranges(catalogs: list[Catalog]) -> Ranges | None:
    columns, files = list[tuple[IntArray, ...]](), 0
    for each in catalogs:
        if each.ranges is None:
            return None
        of_file = each.ranges.files_of(np.arange(len(each))) + files
        columns.append((of_file, each.ranges.starts, each.ranges.sizes.astype(np.int64)))
        files += each.file_count
    return Ranges.of_columns(*map(np.concatenate, zip(*columns, strict=True)))


def _labels(sources: Mapping[str, Catalog], labels: str | None) -> npt.NDArray[np.int32]:
    if labels == "joint":
        return _joint_labels(sources)
    catalogs = [*sources.values()]
    kinds = [np.unique(each.labels) for each in catalogs]
    values, counts = np.unique(np.concatenate(kinds), return_counts=True)
    if labels is None and (counts > 1).any():
        shared = ", ".join(map(str, values[counts > 1][:5].tolist()))
        warnings.warn(
            f"readers.mix: sources share labels, such as {shared}; give labels='joint' to number "
            "the class names of all sources, or labels='own' to keep them without this warning",
            stacklevel=2,
        )
    return np.concatenate([each.labels for each in catalogs])


def _joint_labels(sources: Mapping[str, Catalog]) -> npt.NDArray[np.int32]:
    classes = {name: class_names(name, catalog) for name, catalog in sources.items()}
    union = sorted({each for names in classes.values() for each in names.values()})
    numbers = {each: number for number, each in enumerate(union)}
    parts = []
    for name, catalog in sources.items():
        values, where = np.unique(catalog.labels, return_inverse=True)
        joint = [numbers[classes[name][value]] for value in values.tolist()]
        parts.append(np.array(joint, np.int32)[where])
    return np.concatenate(parts)


def class_names(source: str, catalog: Catalog) -> dict[int, bytes]:
    """Return the class directory of each label, from the first sample of each.

    Raises:
        ValueError: samples are not in class directories.
    """
    if not catalog.labels.size:
        raise ValueError("labels='joint': these samples have no labels")
    values: Any
    values, firsts = np.unique(catalog.labels, return_index=True)
    names = [catalog.file_name(first).partition(b"/")[::2] for first in firsts.tolist()]
    if catalog.ranges is not None or not all(below for _, below in names):
        raise ValueError(
            f"labels='joint': source {source!r} has no class names; joint labels need samples in "
            "the class directories of a file_root"
        )
    return dict(zip(values.tolist(), [name for name, _ in names], strict=True))
