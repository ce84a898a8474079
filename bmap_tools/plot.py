"""The plot of a map: where on the device the files are."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from .console import BadInputError, printable
from .extent_map import ExtentMap, IntArray, csr_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS, _COLUMNS = 256, 512
_NOTHING, _IN_THE_ROOT = -2, -1  # classes are numbered from 0
_GREYS = (0.94, 0.35)
_LEGEND = 20  # no legend for more classes than this


def draw(extent_map: ExtentMap, path: str) -> None:
    """Draw the device as rows of cells, each in the colour of a class with data there.

    Raises:
        BadInputError: matplotlib is missing, or does not know the format (the suffix of `path`).
        OSError: the file cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInputError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    _draw(figure.subplots(), extent_map)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise BadInputError(f"{path}: {error}") from None


def _draw(axes: Axes, extent_map: ExtentMap) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    names = [printable(name) for name in extent_map.directories]
    colours = colormaps["tab20" if len(names) <= _LEGEND else "hsv"].resampled(max(len(names), 1))
    table = np.array([[grey] * 3 for grey in _GREYS] + [colours(n)[:3] for n in range(len(names))])
    row_bytes, size = extent_map.device.size / _ROWS, extent_map.device.size
    axes.imshow(
        table[cells(extent_map) - _NOTHING],
        aspect="auto",
        interpolation="nearest",
        extent=(0, row_bytes / 2**20, size / 2**30, 0),
    )
    axes.set_title(f"{printable(extent_map.root)} on {extent_map.device.path}")
    axes.set_xlabel("MiB from the start of the row")
    axes.set_ylabel("GiB from the start of the device")
    if len(names) <= _LEGEND:
        labels = ["not in the map", "in the root", *names]
        patches = [
            Patch(color=colour, label=label) for colour, label in zip(table, labels, strict=True)
        ]
        axes.figure.legend(handles=patches, loc="outside right upper", fontsize="small")


def cells(extent_map: ExtentMap) -> IntArray:
    """The class with data in each cell of the device: int64[rows, columns]."""
    owners = np.repeat(_classes(extent_map), np.diff(extent_map.extent_offsets))
    written = extent_map.extents[:, 1] >= 0
    _, physical, length = extent_map.extents[written].T
    cell_bytes = -(-extent_map.device.size // (_ROWS * _COLUMNS))
    first = physical // cell_bytes
    counts = (physical + length - 1) // cell_bytes - first + 1
    cells = np.full(_ROWS * _COLUMNS, _NOTHING, np.int64)
    cells[csr_rows(first, counts)] = np.repeat(owners[written], counts)
    return cells.reshape(_ROWS, _COLUMNS)


def _classes(extent_map: ExtentMap) -> IntArray:
    """The class of each file: int64[n]."""
    numbers = {name: number for number, name in enumerate(extent_map.directories)}
    names = (extent_map.name(file).partition(b"/") for file in range(len(extent_map)))
    return np.fromiter(
        (numbers[first] if slash else _IN_THE_ROOT for first, slash, _ in names), np.int64
    )
