"""The summary of the demo: the verdict, and a table for the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .measure import Figures, summarize
from .plot import MACHINE
from .verdict import Comparison, X, times, untuned, warnings_of

_MOST_NOTES = 5
_THEIRS = "fn.readers.file"
_ROWS = {
    "python-file": "readers.file",
    "object-store": "readers.file",
    "python-file-direct": "readers.file, direct",
    "block": "readers.file, block",
}
LABELS = {
    "dali": "fn.readers.file",
    "dali-nommap": "fn.readers.file,\ndont_use_mmap",
    "dali-s3-32": "fn.readers.file,\n32 threads",
    **_ROWS,
}
"""What the plot calls the legs."""


def _rows(part: Comparison) -> dict[str, Figures]:
    """The figures by the rows of the table; those of DALI are of its fastest leg."""
    figures = summarize(part.results)
    theirs = [row for name, row in figures.items() if name not in _ROWS]
    rows = {_ROWS[name]: row for name, row in figures.items() if name in _ROWS}
    if theirs:
        rows[_THEIRS] = max(theirs, key=lambda row: row["img_per_s"] or 0)
    return rows


def notes_of(
    parts: Sequence[Comparison], busy: Mapping[str, float], left_out: Sequence[str]
) -> list[str]:
    """What failed, was left out or was slower than DALI, and why not to trust the figures."""
    notes = []
    for part in parts:
        for name, it in part.results.items():
            if reason := it.failed or it.skipped:
                what = "left out" if it.failed is None else "FAILED"
                notes.append(f"{what}: {name}, {part.title}: {reason}")
    notes += [f"Left out: {reason}" for reason in left_out]
    slower = [
        f"{part.title} {name}"
        for part in parts
        for name, row in _rows(part).items()
        if name != _THEIRS and round(row.get("ratio") or 1, 2) < 1
    ]
    notes += [f"Slower than DALI: {', '.join(slower)}"] if slower else []
    return notes + warnings_of(busy, parts)


def summary(
    parts: Sequence[Comparison], machine: Mapping[str, Any], notes: Sequence[str]
) -> Iterator[str]:
    """The lines of the summary, 16 at most: 10 and those of the notes."""
    workload = parts[0].workload
    size, count = workload.sizes.mean() / 1e3, len(workload.catalog)
    failed = any(it.failed for part in parts for it in part.results.values())
    same = "differ: see below" if failed else "are those of DALI"
    yield f"{count:,} JPEGs of {size:.0f} KB, shuffled: bytes, labels and order {same}."
    yield MACHINE.format_map(machine)
    yield f"{X}."
    yield "Read, not decoded, but for the last column. S3: a server here; ms to the first byte."
    rows = [_rows(part) for part in parts]
    yield f"{'images/s':24}" + "".join(f"{part.title:>18}" for part in parts)
    for name in dict.fromkeys([_THEIRS, *_ROWS.values()]):
        cells = [_cell(name, row.get(name)) for row in rows]
        if any(cells):
            yield (f"{name:24}" + "".join(f"{cell:>18}" for cell in cells)).rstrip()
    firsts = {name: it.first_seconds for name, it in parts[0].results.items()}
    if (ours := firsts.get("python-file")) and (theirs := firsts.get("dali-nommap")):
        yield f"First batch, hot: {_THEIRS} {theirs:.2f} s, readers.file {ours:.2f} s."
    yield from notes[:_MOST_NOTES]
    if len(notes) > _MOST_NOTES:
        yield f"And {len(notes) - _MOST_NOTES} more: the JSON file has the reasons"


def sentence(parts: Sequence[Comparison]) -> str:
    """The verdict, for a reader of one line."""
    x = {name: row["ratio"] for name, row in untuned(parts).items()}
    said = ", ".join(f"{times(ratio)} {what}" for what, ratio in x.items() if ratio is not None)
    return f"Swap the call, and nothing else: {said or 'nothing'} of DALI's images a second."


def _cell(name: str, row: Figures | None) -> str:
    if row is None:
        return ""
    ratio = row.get("ratio")
    return f"{row['img_per_s']:,.0f} {times(ratio) if ratio and name != _THEIRS else '':>6}"
