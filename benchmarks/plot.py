"""The plot: ours green, DALI's readers and the others grey."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bmap_tools.atomic import replacing

from .measure import summarize
from .pipelines import describe_use
from .verdict import Comparison, X, times

MACHINE = "{cpu}, {cores} cores, {file_system}, Linux {kernel}, Python {python}, DALI {dali}"


def draw(
    path: str,
    compared: Sequence[Comparison],
    machine: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write a PNG: for each comparison the speed of every leg with its spread, and its CPU time."""
    legs = max(len(part.results) for part in compared)
    picture = Figure(figsize=(4.8 * len(compared), 2.5 + 0.7 * legs), layout="constrained")
    for (speeds, costs), part in zip(
        picture.subplots(2, len(compared), squeeze=False).T, compared, strict=True
    ):
        figures = dict(reversed(summarize(part.results).items()))  # the first leg on top
        ours = {leg.name for leg in part.legs if leg.backend is not None}
        look: dict[str, Any] = {
            "color": ["tab:green" if name in ours else "tab:gray" for name in figures],
            "tick_label": [(labels or {}).get(name, name) for name in figures],
        }
        keys = ("img_per_s", "img_per_s_q1", "img_per_s_q3", "cpu_us_per_img")
        speed, least, most, cost = (
            np.array([row[key] for row in figures.values()]) for key in keys
        )
        rows = range(len(figures))
        speeds.barh(rows, speed, xerr=[speed - least, most - speed], capsize=3, **look)
        costs.barh(rows, cost, **look)
        for row, its in zip(rows, figures.values(), strict=True):
            x = f"\n{times(ratio)}" if (ratio := its.get("ratio")) else ""
            end = most[row] + 0.03 * max(most)
            speeds.text(end, row, f"{speed[row]:,.0f}{x}", va="center")
        what = f"{part.title}, {describe_use(part.workload.settings)}"
        speeds.set(title=what, xlabel="images/s", xlim=(0, 1.3 * max(most, default=1)))
        costs.set(title=what, xlabel="microseconds of CPU time an image")
        for axes in (speeds, costs):
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.locator_params(axis="x", nbins=5)
            axes.spines[["top", "right"]].set_visible(False)
    what = f"median and quartiles of the turns; {X}"
    picture.suptitle(f"{MACHINE.format_map(machine)}\n{what}", fontsize="medium", wrap=True)
    with replacing(path) as file:
        picture.savefig(file, format="png", dpi=120)
