"""show --plot, against the extents in the map."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import bmap_tools
from bmap_tools import plot

from .command import entries, fill, refused, tool


@pytest.fixture
def ext4_mapped(ext4_root: Path, bmap: Path) -> Path:
    """The map of three files in two classes and the root of ext4."""
    fill(ext4_root, (3 << 20, 2 << 20))
    (ext4_root / "loose").write_bytes(os.urandom(4 << 20))
    assert tool("create", ext4_root, "-o", bmap) == 0
    return bmap


def test_the_plot_has_the_colours_of_the_classes_where_they_lie(ext4_mapped: Path) -> None:
    loaded = bmap_tools.load(ext4_mapped)
    cells = plot.cells(loaded).ravel()
    cell_bytes = (320 << 20) / cells.size
    owner = {"c0/00.jpg": 0, "c1/01.jpg": 1, "loose": -1}
    rest = np.ones(cells.size, bool)
    for name, (*_, extents) in entries(ext4_mapped).items():
        for _, physical, length in extents:
            cover = slice(int(physical / cell_bytes), int((physical + length - 1) / cell_bytes) + 1)
            assert (cells[cover] == owner[name]).mean() > 0.9  # its neighbours may have the ends
            rest[cover] = False
    assert set(cells[rest]) == {-2}


def test_the_plot_is_a_picture(
    ext4_mapped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="no matplotlib here: pip install matplotlib")
    from matplotlib import colormaps
    from matplotlib.image import imread

    assert tool("show", ext4_mapped, "--plot", tmp_path / "plot.png") == 0
    picture = imread(tmp_path / "plot.png")
    colours = {tuple(pixel) for pixel in np.unique(picture.reshape(-1, 4)[:, :3].round(2), axis=0)}
    for number in range(2):  # of the classes
        colour = np.array(colormaps["tab20"].resampled(2)(number)[:3], np.float32)
        assert tuple(colour.round(2)) in colours
    assert "plot.tiger: Format 'tiger'" in refused(
        capsys, "show", ext4_mapped, "--plot", tmp_path / "plot.tiger"
    )
    assert "plot.png: No such file" in refused(
        capsys, "show", ext4_mapped, "--plot", tmp_path / "no" / "plot.png"
    )


def test_without_matplotlib_the_message_says_how_to_install_it(
    mapped: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, bmap = mapped
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = refused(capsys, "show", bmap, "--plot", tmp_path / "plot.png")
    assert said == "bmap_tools: --plot needs matplotlib: pip install matplotlib"
