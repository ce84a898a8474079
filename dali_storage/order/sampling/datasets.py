"""The streams of data sets, as described by the arguments of readers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract.options import require_integer
from .draws import Draws
from .mixture import Mixture, integer_weights
from .sources import Drawn, Groups, Joined, Mixed, Sources, by_label, class_weights
from .stream import MixedStream


@dataclass(frozen=True, slots=True)
class DataSet:
    """The samples of a data set, and their weights.

    Attributes:
        size: number of samples.
        labels: integers[size]; None: no labels.
        weights: weights of the classes, see `class_weights()`; or one number per sample; or None.
    """

    size: int
    labels: npt.NDArray[Any] | None = None
    weights: Any = None

    def __post_init__(self) -> None:
        require_integer("a data set", "size", self.size, range(1, 2**48))

    @property
    def by_class(self) -> bool:
        """True if the weights are of classes."""
        return isinstance(self.weights, (str, Mapping))

    def classes(self, start: int = 0) -> tuple[list[tuple[str, Any]], list[int], Groups]:
        """The weights of the classes, their labels and their samples, numbered from `start` on.

        The weights are pairs for `integer_weights()`.
        """
        if self.labels is None:
            raise ValueError(
                "weights of classes need labels that are known before reading, and these samples "
                "have none: give one weight per sample"
            )
        labels = np.asarray(self.labels)
        if labels.shape != (self.size,) or labels.dtype.kind not in "iu":
            what = f"{labels.dtype} of shape {labels.shape}"
            raise ValueError(f"labels must be {self.size} integers, one per sample, not {what}")
        names, groups = by_label(labels.astype(np.int64), start)
        sizes = dict(zip(names, groups.lengths.tolist(), strict=True))
        return class_weights(sizes, self.weights), names, groups

    def source(self, start: int, listed: bool, draws: int) -> Sources:
        """Return the samples from `start` on, as a family of one source.

        `listed`: each pass keeps the order of the list. `draws`: the number of draws in a pass, if
        samples have weights.
        """
        if self.weights is None:
            return Groups(np.array([start]), np.array([self.size]), listed=listed)
        if listed:
            raise ValueError("weights of classes or samples need shuffle=True")
        if not self.by_class:
            return Drawn(start, Draws(self.weights, self.size, draws))
        pairs, _, groups = self.classes(start)
        return Mixed(Mixture(integer_weights(pairs)), groups)


def stream_of(samples: DataSet, *, seed: int, epoch_size: Any) -> MixedStream:
    """The stream of one data set; classes with weights are the sources of a mixture.

    With weights of samples and a number as `epoch_size`, a pass has as many draws. For the other
    arguments see `MixedStream`.

    Raises:
        ValueError, TypeError: an argument is wrong.
    """
    if samples.by_class:
        pairs, names, groups = samples.classes()
        labels, known = np.asarray(samples.labels), np.array(names)
        shares = dict(zip(names, [weight for _, weight in pairs], strict=True))
        return MixedStream(
            names,
            groups,
            lambda chosen: np.searchsorted(known, labels[chosen]),
            [(0, shares)],
            seed=seed,
            epoch_size=epoch_size,
        )
    draws = epoch_size if isinstance(epoch_size, (int, np.integer)) else samples.size
    source, one = samples.source(0, False, int(draws)), {"samples": 1}
    return MixedStream([*one], source, np.zeros_like, [(0, one)], seed=seed, epoch_size=epoch_size)


def mixture_of(
    parts: Mapping[str, DataSet],
    weights: Mapping[str, Any] | None,
    schedule: Sequence[tuple[int, Mapping[str, Any]]] | None,
    *,
    seed: int,
    epoch_size: Any,
    listed: bool = False,
) -> MixedStream:
    """The stream of several data sets, with samples numbered one set after the other.

    Without weights and schedule, the weights are the sizes. For the other arguments see
    `MixedStream` and `DataSet.source()`.

    Raises:
        ValueError, TypeError: an argument is wrong; the message names its data set.
    """
    if not parts:
        raise ValueError("there are no sources: give at least one")
    if weights is not None and schedule is not None:
        raise ValueError("weights and schedule cannot both be given: a schedule has all weights")
    sizes = {name: part.size for name, part in parts.items()}
    starts, families = [0, *accumulate(sizes.values())][:-1], []
    for (name, part), start in zip(parts.items(), starts, strict=True):
        try:
            families.append(part.source(start, listed, part.size))
        except (ValueError, TypeError) as error:
            raise type(error)(f"source {name!r}: {error}") from None
    return MixedStream(
        [*sizes],
        Joined(families),
        lambda chosen: np.searchsorted(starts, chosen, "right") - 1,
        [(0, sizes if weights is None else weights)] if schedule is None else schedule,
        seed=seed,
        epoch_size=epoch_size,
    )
