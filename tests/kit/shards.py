"""Writes MDS shards and litData chunks as their layouts are described, by struct and json."""

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

Sample = Mapping[str, bytes]
"""The encoded value of each column."""


def file_of(records: Sequence[bytes], configuration: bytes = b"") -> bytes:
    """A shard: the table, the configuration and the records."""
    first = 4 * (len(records) + 2) + len(configuration)
    starts = accumulate(map(len, records), initial=first)
    return (
        struct.pack(f"<{len(records) + 2}I", len(records), *starts)
        + configuration
        + b"".join(records)
    )


def write_mds(
    root: Path,
    columns: Mapping[str, tuple[str, int | None]],
    shards: Mapping[str, Sequence[Sample]],
) -> Path:
    """MDS shards by their names; a column has an encoding, and a size if that is fixed."""
    names = sorted(columns)
    stored = [name for name in names if columns[name][1] is None]
    described: dict[str, Any] = {"format": "mds", "version": 2, "compression": None, "hashes": []}
    described |= {"column_names": names, "size_limit": 1 << 26}
    described["column_encodings"] = [columns[name][0] for name in names]
    described["column_sizes"] = [columns[name][1] for name in names]
    rows = []
    for place, samples in shards.items():
        records = [
            struct.pack(f"<{len(stored)}I", *(len(each[name]) for name in stored))
            + b"".join(each[name] for name in names)
            for each in samples
        ]
        content = file_of(records, json.dumps(described, sort_keys=True).encode())
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        (root / place).write_bytes(content)
        raw = {"basename": place, "bytes": len(content), "hashes": {}}
        rows.append(described | {"samples": len(samples), "raw_data": raw, "zip_data": None})
    (root / "index.json").write_text(json.dumps({"version": 2, "shards": rows}))
    return root


LEAF = {"type": None, "context": None, "children_spec": []}


def dict_of(**children: Any) -> dict[str, Any]:
    """The description of a dict in torch's pytree."""
    context = json.dumps([*children])
    return {"type": "builtins.dict", "context": context, "children_spec": [*children.values()]}


def write_litdata(
    root: Path,
    spec: Mapping[str, Any],
    formats: Sequence[str],
    chunks: Sequence[Sequence[Sequence[bytes]]],
    *,
    old: bool = False,
) -> Path:
    """Chunks of samples, which are their encoded leaves; `old`: as release 0.2.30 counts bytes."""
    root.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, samples in enumerate(chunks):
        records = [struct.pack(f"<{len(it)}I", *map(len, it)) + b"".join(it) for it in samples]
        content, name = file_of(records), f"chunk-0-{number}.bin"
        (root / name).write_bytes(content)
        nbytes = sum(map(len, records)) if old else len(content)
        rows.append(
            {"chunk_bytes": nbytes, "chunk_size": len(samples), "dim": None, "filename": name}
        )
    config = {"compression": None, "encryption": None, "data_format": [*formats]}
    config |= {"data_spec": json.dumps([1, spec]), "item_loader": "PyTreeLoader"}
    (root / "index.json").write_text(json.dumps({"chunks": rows, "config": config}))
    return root


def write_numbered_mds(directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Arguments of a reader of numbers in shards that have so many."""
    numbers = iter(range(sum(counts)))
    shards = {
        f"shard.{it:05}.mds": [{"n": struct.pack("<q", next(numbers))} for _ in range(count)]
        for it, count in enumerate(counts)
    }
    return {"path": str(write_mds(directory, {"n": ("int", 8)}, shards)), "columns": "n"}


def write_numbered_litdata(directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Arguments of a reader of numbers in chunks that have so many."""
    numbers = iter(range(sum(counts)))
    chunks = [[[struct.pack("<q", next(numbers))] for _ in range(count)] for count in counts]
    return {"path": str(write_litdata(directory, LEAF, ["int"], chunks)), "columns": "0"}
