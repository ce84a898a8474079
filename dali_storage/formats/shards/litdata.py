"""The index of a litData data set, as Lightning's optimize() writes it (PyTreeLoader)."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from .records import Column, ShardEntry, ShardIndex

_RAW = {"audio", "bytes", "file", "image", "jpeg", "json", "pdf", "str", "text"}
_RAW |= {"tifffile", "video"}
_NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
# litData's own numbers of types, which differ for arrays and tensors.
_NUMPY = ["i1", "<i2", "<i4", "<i8", "u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"]
_TORCH = {1: "<f4", 3: "<f8", 9: "<f2", 11: "u1", 12: "i1", 14: "<i2", 16: "<i4", 18: "<i8"}
_TORCH |= {19: "?", 20: "<u2"}
_NUMBERED = {f"no_header_numpy:{number}": it for number, it in enumerate(_NUMPY)}
_NUMBERED["no_header_numpy:13"] = "?"
_NUMBERED |= {f"no_header_tensor:{number}": it for number, it in _TORCH.items()}
_REMEDIES = {
    "jpeg_array": "give optimize() one leaf for each image",
    "numpy": "flatten arrays, which are then written without a header",
    "pickle": "pickles are never loaded: give optimize() bytes, text, numbers or 1-D arrays",
    "pil": "give optimize() the bytes of a JPEG or PNG",
    "tensor": "flatten tensors, which are then written without a header",
}
_ARROW = "its rows are Arrow tables, as litData 0.2.74 and later write dicts of plain values"
_TRAILERS = {b"LDARW01\0": f"{_ARROW}; give optimize() tuples, or images as litdata.Jpeg"}


def parse(root: str, index: Any) -> ShardIndex:
    """Parse an index, see `records.Parse`.

    Columns are the leaves of a sample, named by their keys and numbers: "image", "meta.id", "0".

    Raises:
        ValueError: it is of another format, or was written with options that are not read.
    """
    if "shards" in index:
        raise ValueError(f"path {root!r} is a data set of MDS: use readers.mds")
    config = index["config"]
    for name in ("compression", "encryption"):
        if given := config.get(name):
            what = f"path {root!r} was written with {name}={given!r}"
            raise ValueError(f"{what}, which is not read; write it by optimize() without {name}")
    if (loader := config.get("item_loader") or "PyTreeLoader") != "PyTreeLoader":
        what = f"path {root!r} was written with item_loader={loader}"
        raise ValueError(f"{what}, which is not read; write it by optimize() without item_loader")
    names, kinds = [*_leaves(json.loads(config["data_spec"])[1])], config["data_format"]
    if len(names) != len(kinds):
        raise TypeError(f"data_spec has {len(names)} leaves, data_format {len(kinds)}")
    shards = []
    for row in index["chunks"]:
        count, nbytes = row["chunk_size"], row["chunk_bytes"]
        # Old releases leave out the table.
        shards.append(ShardEntry(row["filename"], count, (nbytes, nbytes + 4 * (count + 2))))
    columns = map(_column, names, kinds)
    alike = "several leaves have this name; rename one of their keys"
    marked = (it._replace(refused=alike) if names.count(it.name) > 1 else it for it in columns)
    return ShardIndex(shards, tuple(marked), trailers=_TRAILERS)


def _leaves(spec: Any, name: str = "") -> Iterator[str]:
    """Yield the names of the leaves below a node of torch's pytree, in their order."""
    if spec["type"] is None:
        yield name or "0"
        return
    children = spec["children_spec"]
    has_keys = spec["type"] in ("builtins.dict", "collections.OrderedDict")
    keys = json.loads(spec["context"]) if has_keys else range(len(children))
    for key, child in zip(keys, children, strict=False):  # `parse()` counts
        yield from _leaves(child, f"{name}.{key}" if name else str(key))


def _column(name: str, form: str) -> Column:
    kind = form.partition(":")[0]
    if kind in _RAW:
        return Column(name)
    if kind in _NUMBERS:
        return Column(name, np.dtype(_NUMBERS[kind]), (1,))
    if form in _NUMBERED:
        return Column(name, np.dtype(_NUMBERED[form]))
    remedy = _REMEDIES.get(kind, "give optimize() bytes, text, numbers or 1-D arrays")
    return Column(name, refused=f"the format {form!r} has no plain values; {remedy}")
