"""The summary of the demo: a table for the terminal, and a plot."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmap_tools.atomic import replacing

from .legs import Leg
from .measure import Figures, Results, summarize
from .workload import Workload

_MOST_NOTES = 4
_MACHINE = "{cpu}, {cores} cores, {file_system}, Linux {kernel}, Python {python}, DALI {dali}"
_THEIRS = "fn.readers.file"
_ROWS = {
    "python-file": "readers.file",
    "object-store": "readers.file",
    "python-file-direct": "readers.file, direct",
    "block": "readers.file, block",
}
_MODES = {
    "dali": "fn.readers.file",
    "dali-nommap": "fn.readers.file,\ndont_use_mmap",
    "dali-s3-16": "fn.readers.file,\n16 threads",
    "dali-s3-32": "fn.readers.file,\n32 threads",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Legs that are timed side by side.

    Attributes:
        title: what they read, of which storage.
    """

    title: str
    legs: Sequence[Leg]
    workload: Workload
    results: Results

    @property
    def rows(self) -> dict[str, Figures]:
        """The figures by the rows of the table; those of DALI are of its fastest leg."""
        figures = summarize(self.results)
        theirs = [row for name, row in figures.items() if name not in _ROWS]
        rows = {_ROWS[name]: row for name, row in figures.items() if name in _ROWS}
        if theirs:
            rows[_THEIRS] = max(theirs, key=lambda row: row["img_per_s"] or 0)
        return rows

    @property
    def failed(self) -> bool:
        """Whether a leg failed, or differs from DALI's."""
        return any(result.failed is not None for result in self.results.values())

    @property
    def notes(self) -> Iterator[str]:
        """What failed or was left out."""
        for name, result in self.results.items():
            if result.failed is not None:
                yield f"FAILED: {name}, {self.title}: {result.failed}"
            elif result.skipped is not None:
                yield f"left out: {name}, {self.title}: {result.skipped}"


def summary(
    parts: Sequence[Part], machine: Mapping[str, Any], left_out: Sequence[str]
) -> Iterator[str]:
    """The lines of the summary, 14 at most: the table has 9, and the notes have 5."""
    workload = parts[0].workload
    size, count = workload.sizes.mean() / 1e3, len(workload.catalog)
    verdict = "differ: see below" if any(part.failed for part in parts) else "are those of DALI"
    rounds = {len(each.rounds) for part in parts for each in part.results.values() if each.rounds}
    yield f"{count:,} JPEGs of {size:.0f} KB, shuffled: bytes, labels and order {verdict}."
    yield _MACHINE.format_map(machine)
    yield (
        f"Medians; rounds, in turns: {' or '.join(map(str, sorted(rounds)))}. "
        "x: ratio to the faster mode of DALI in a round."
    )
    yield "direct and block read the disk even when hot. S3: a server here; ms to the first byte."
    rows = [part.rows for part in parts]
    yield f"{'images/s':24}" + "".join(f"{part.title:>18}" for part in parts)
    for name in dict.fromkeys([_THEIRS, *_ROWS.values()]):
        cells = [_cell(name, row.get(name)) for row in rows]
        if any(cells):
            yield (f"{name:24}" + "".join(f"{cell:>18}" for cell in cells)).rstrip()
    notes = [note for part in parts for note in part.notes]
    notes += [f"Left out: {reason}" for reason in left_out]
    notes += _slower(parts)
    if machine["load"] > machine["cores"]:
        notes.append(f"The machine was busy (load {machine['load']:.0f}): repeat when it is idle")
    yield from notes[:_MOST_NOTES]
    if len(notes) > _MOST_NOTES:
        yield f"And {len(notes) - _MOST_NOTES} more: the JSON file has the reasons"


def _slower(parts: Sequence[Part]) -> list[str]:
    found = []
    for part in parts:
        rows = part.rows.items()
        names = [
            name for name, row in rows if name != _THEIRS and round(row.get("ratio") or 1, 2) < 1
        ]
        if names:
            found.append(f"{part.title}: {', '.join(name.split(', ')[-1] for name in names)}")
    return [f"Slower than DALI: {'; '.join(found)}"] if found else []


def _cell(name: str, row: Figures | None) -> str:
    if row is None:
        return ""
    return f"{row['img_per_s']:,.0f} {_ratio(row) if name != _THEIRS else '':>6}"


def _ratio(row: Figures) -> str:
    ratio = row.get("ratio")
    return "" if ratio is None else f"{ratio:.2f}x"


def draw(path: str, parts: Sequence[Part], machine: Mapping[str, Any]) -> None:
    """Write a PNG: the speed of every leg, with its slowest and fastest round."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(4.8 * len(parts), 4), layout="constrained")
    for axes, part in zip(np.atleast_1d(picture.subplots(1, len(parts))), parts, strict=True):
        figures = dict(reversed(summarize(part.results).items()))  # the first leg on top
        names = [_MODES.get(name) or _ROWS[name] for name in figures]
        speed, least, most = (
            np.array([row[key] for row in figures.values()])
            for key in ("img_per_s", "img_per_s_min", "img_per_s_max")
        )
        colors = ["tab:green" if name in _ROWS else "tab:gray" for name in figures]
        axes.barh(names, speed, xerr=[speed - least, most - speed], capsize=3, color=colors)
        for place, row in enumerate(figures.values()):
            end = most[place] + 0.03 * max(most)
            axes.text(end, place, f"{row['img_per_s']:,.0f}\n{_ratio(row)}", va="center")
        axes.set(title=part.title, xlabel="images/s", xlim=(0, 1.3 * max(most, default=1)))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=5)
        axes.spines[["top", "right"]].set_visible(False)
    what = "median, slowest and fastest round; x: ratio to the faster mode of DALI in a round"
    picture.suptitle(f"{_MACHINE.format_map(machine)}\n{what}", fontsize="medium")
    with replacing(path) as file:
        picture.savefig(file, format="png", dpi=120)
