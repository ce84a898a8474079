"""Draws the charts of two pages from their tables, in both themes: `python -m benchmarks.chart`.

Each bar reaches from DALI's own reader, 1x, to another; of a range, the bar ends at its lower end.
"""

import math
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TypeAlias

DOCS = Path(__file__).parents[1] / "docs"
_STYLE = (
    "<style>svg{font:14px system-ui,sans-serif;fill:#1f2328}"
    "@media(prefers-color-scheme:dark){svg{fill:#e6edf3}}</style>"
)
_OURS, _DALIS = "#2da44e", "#8c959f"
_LEFT, _OCTAVE, _ROW, _WIDTH = 236, 76, 26, 540  # pixels: where 0.5x is, of a factor of 2, ...
_TICKS = (0.5, 1, 2, 4)

Row: TypeAlias = tuple[str, list[float]]
"""What a bar shows, and its x, or both ends of its range."""


def gains(page: str) -> list[Row]:
    """The situations of the table of docs/benchmarks.md."""
    text = page.partition("<!-- figures: gains -->")[2].partition("<!-- end of figures -->")[0]
    found = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([\d.]+)(?: to ([\d.]+))? \|", text, re.M)
    return [
        (
            f"{what}: {option}".replace(": nothing", "").replace("`", ""),
            [*map(float, filter(None, x))],
        )
        for what, option, *x in found
    ]


def ranks(page: str) -> list[Row]:
    """The readers of RetinaNet of docs/mlperf-storage.md that decode nothing, by ranks."""
    text = page.partition("<!-- figures: retinanet -->")[2].partition("<!-- end of figures -->")[0]
    found = re.findall(r"^\| `([\w-]+)` \| (\d+) \| ([\d,]+) \|", text, re.M)
    speeds = {(name, count): float(rate.replace(",", "")) for name, count, rate in found}
    return [
        (f"{count} {'rank' if count == '1' else 'ranks'}: {name}", [rate / speeds["dali", count]])
        for (name, count), rate in speeds.items()
        if name.startswith(("dlio-bytes", "ours"))
    ]


def _at(x: float) -> float:
    return _LEFT + _OCTAVE * (math.log2(x) + 1)


def _shapes(rows: list[Row]) -> Iterator[str]:
    foot = _ROW * (len(rows) + 1) + 8
    for tick in _TICKS:
        x, width = f"{_at(tick):.1f}", 3 if tick == 1 else 0.5
        yield f'<path d="M{x} 24V{foot}" stroke="{_DALIS}" stroke-width="{width}"/>'
        name = "DALI" if tick == 1 else f"{tick:g}x"
        yield f'<text x="{x}" y="18" fill="{_DALIS}" text-anchor="middle">{name}</text>'
    for number, (what, ends) in enumerate(rows, 1):
        y = _ROW * number + 8
        first, last = sorted((_at(1), _at(ends[0])))
        yield f'<text x="8" y="{y + 13}">{escape(what)}</text>'
        bar = f'x="{first:.1f}" y="{y}" width="{last - first:.1f}" height="16"'
        yield f'<rect {bar} fill="{_DALIS if "dlio" in what else _OURS}"/>'
        if ends[1:]:
            path = f"M{last:.1f} {y + 8}H{_at(ends[1]):.1f}"
            yield f'<path d="{path}" stroke="{_OURS}" stroke-width="3"/>'
        said = " to ".join(f"{round(end, 2):g}" for end in ends) + "x"
        yield f'<text x="{max(_at(1), *map(_at, ends)) + 6:.1f}" y="{y + 13}">{said}</text>'


def drawing(rows: list[Row], title: str) -> str:
    """The rows as an SVG."""
    size = f'width="{_WIDTH}" viewBox="0 0 {_WIDTH} {_ROW * (len(rows) + 1) + 14}"'
    text = f'<text x="8" y="18" font-weight="bold">{title}</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, _STYLE, text, *_shapes(rows), "</svg>\n"])


CHARTS = {
    "gain.svg": ("benchmarks.md", gains, "read, not decoded"),
    "mlperf-storage.svg": ("mlperf-storage.md", ranks, "RetinaNet, cold, samples/s"),
}
"""The page of each chart, its rows, and its title."""


def draw(name: str) -> str:
    """One of `CHARTS`, by the table of its page."""
    page, rows, title = CHARTS[name]
    return drawing(rows((DOCS / page).read_text(encoding="utf-8")), title)


if __name__ == "__main__":
    for name in CHARTS:
        (DOCS / name).write_text(draw(name), encoding="utf-8")
