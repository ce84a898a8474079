"""Writes Parquet files by pyarrow, whose values are stored plainly unless said otherwise."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLAIN = {"compression": "none", "use_dictionary": False}


def write_table(path: Path, columns: Any, **options: Any) -> str:
    """Write columns, by their names, or a table; returns the path."""
    import pyarrow as pa  # not in every environment of the tests
    import pyarrow.parquet as pq

    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **PLAIN | options)
    return str(path)


def write_numbered_tables(directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    """Arguments of a reader of rows in files with so many; the label of a row is its number."""
    starts = [sum(counts[:number]) for number in range(len(counts))]
    paths = [
        write_table(
            directory / f"{number}.parquet",
            {"image": [b"x"] * count, "label": range(start, start + count)},
        )
        for number, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    return {"paths": paths}
