"""The picture of a map: where on the device the files lie."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np

from . import csr
from .extent_map import ExtentMap, IntArray
from .report import BadInputError, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROWS, _COLUMNS = 256, 512
_NOTHING, _IN_THE_ROOT = -2, -1  # beside the numbers of the classes
_GREYS = (0.94, 0.35)
_LEGEND = 20  # more classes than these get no names


def draw(loaded: ExtentMap, path: str) -> None:
    """Draw the device as rows of cells, each in the colour of a class that has data in it.

    Args:
        loaded: the map.
        path: the picture; its suffix says of which format.

    Raises:
        BadInputError: matplotlib is missing, or does not know the format.
        OSError: the picture cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInputError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    _draw(figure.subplots(), loaded)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise BadInputError(f"{path}: {error}") from None


def _draw(axes: Axes, loaded: ExtentMap) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Patch

    names = [text(name) for name in loaded.directories]
    colours = colormaps["tab20" if len(names) <= _LEGEND else "hsv"].resampled(max(len(names), 1))
    table = np.array([[grey] * 3 for grey in _GREYS] + [colours(n)[:3] for n in range(len(names))])
    row_bytes, size = loaded.device.size / _ROWS, loaded.device.size
    axes.imshow(
        table[_cells(loaded) - _NOTHING],
        aspect="auto",
        interpolation="nearest",
        extent=(0, row_bytes / 2**20, size / 2**30, 0),
    )
    axes.set_title(f"{text(loaded.root)} on {loaded.device.path}")
    axes.set_xlabel("MiB from the beginning of the row")
    axes.set_ylabel("GiB from the beginning of the device")
    if len(names) <= _LEGEND:
        labels = ["nothing of the map", "in the root", *names]
        patches = [
            Patch(color=colour, label=label) for colour, label in zip(table, labels, strict=True)
        ]
        axes.figure.legend(handles=patches, loc="outside right upper", fontsize="small")


def _cells(loaded: ExtentMap) -> IntArray:
    """Of each cell of the device the class that has data in it: int64[rows, columns]."""
    owners = np.repeat(_classes(loaded), np.diff(loaded.extent_offsets))
    written = loaded.extents[:, 1] >= 0
    _, physical, length = loaded.extents[written].T
    cell_bytes = -(-loaded.device.size // (_ROWS * _COLUMNS))
    first = physical // cell_bytes
    counts = (physical + length - 1) // cell_bytes - first + 1
    cells = np.full(_ROWS * _COLUMNS, _NOTHING, np.int64)
    cells[csr.rows(first, counts)] = np.repeat(owners[written], counts)
    return cells.reshape(_ROWS, _COLUMNS)


def _classes(loaded: ExtentMap) -> IntArray:
    """The class of each file: int64[n]."""
    numbers = {name: number for number, name in enumerate(loaded.directories)}
    names = (loaded.name(file).partition(b"/") for file in range(len(loaded)))
    return np.fromiter(
        (numbers[first] if slash else _IN_THE_ROOT for first, slash, _ in names), np.int64
    )
