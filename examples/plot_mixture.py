"""Draws what a mixture gives: the picture of docs/sampling.md.

python examples/plot_mixture.py docs/sampling.svg
"""

import argparse
from tempfile import mkdtemp
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap

from dali_storage.order import OrderOptions
from dali_storage.order.sampling import datasets, dealing

SIZES = {"photos": 4000, "scans": 500, "drawings": 60}
WEIGHTS = {"photos": 0.7, "scans": 0.2, "drawings": 0.1}
COLOURS = ["#4c72b0", "#dd8452", "#55a868"]
BATCH, WORLD, SHOWN, POSITIONS = 10, 3, 60, 500


def errors(chosen: Any) -> Any:
    """Of each source after each sample: how many samples it has given, less its share."""
    counts = (chosen[:, None] == np.arange(len(SIZES))).cumsum(axis=0)
    return counts - np.arange(1, len(chosen) + 1)[:, None] * [*WEIGHTS.values()]


def draw(path: str) -> None:
    sources = {name: datasets.DataSet(size) for name, size in SIZES.items()}
    stream = datasets.mixture_of(sources, WEIGHTS, None, seed=0, epoch_size=None)
    indices = dealing.StreamOrder(stream, POSITIONS, OrderOptions(pad_last_batch=True)).batch(0)
    chosen = np.searchsorted(np.cumsum([*SIZES.values()]), indices, "right")
    plt.rcParams |= {"svg.hashsalt": "0", "svg.fonttype": "none", "font.size": 9}
    figure, (order, ours, theirs) = plt.subplots(
        3, height_ratios=[1, 3, 3], figsize=(8, 5.5), layout="constrained"
    )
    order.imshow(chosen[None, :SHOWN], ListedColormap(COLOURS), aspect="auto")
    for cut in range(BATCH, SHOWN, BATCH):
        whole = cut % (BATCH * WORLD) == 0
        order.axvline(cut - 0.5, color="black" if whole else "white", linewidth=3)
    title = f"A black line ends a batch of all {WORLD} ranks, a white one that of a rank"
    order.set(title=f"The stream. {title}", yticks=[])
    independent = np.random.default_rng(0).choice(len(SIZES), POSITIONS, p=[*WEIGHTS.values()])
    for axes, found, title in (
        (ours, chosen, "Samples given, less the share, in this order"),
        (theirs, independent, "Samples given, less the share, by independent draws"),
    ):
        for error, name, colour in zip(errors(found).T, SIZES, COLOURS, strict=True):
            axes.plot(error, color=colour, linewidth=0.8, label=f"{name}, {WEIGHTS[name]:.0%}")
        print(f"{title}: at most {np.abs(errors(found)).max():.1f}")
        axes.axhspan(-1.68, 1.68, color="#dddddd", zorder=0)
        axes.set(title=title, xlim=(0, POSITIONS), xlabel="position")
    ours.set_ylim(-3, 3)
    ours.legend(ncols=len(SIZES), loc="upper right")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", metavar="FILE", help="default: a temporary one")
    draw(given := parser.parse_args().path or f"{mkdtemp()}/mixture.svg")
    print(given)
