"""Families of sources, with the sample of a source at each ordinal, in passes.

A pass is an order of the samples of a source; the next pass has another order. All keys, orders and
counts follow from the numbers of the source and of the pass, so nothing is stored.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...contract._types import IntArray
from ..permutation import hashed, keys_of, permuted
from .draws import Draws
from .mixture import Mixture


class Sources(Protocol):
    """Sources, numbered from 0.

    Attributes:
        lengths: int64[k], the number of ordinals in a pass of each source; at least 1.
        crc: CRC-32 of everything that determines samples, except key, number and ordinal.
    """

    lengths: IntArray
    crc: int

    def entries(self, key: int, numbers: IntArray, ordinals: IntArray) -> IntArray:
        """The sample at each ordinal of the source with each number: int64[n], in the catalog."""


class Groups:
    """Groups of samples; a pass has each sample of a group once."""

    def __init__(
        self,
        starts: IntArray,
        lengths: IntArray,
        members: IntArray | None = None,
        listed: bool = False,
    ) -> None:
        """Make groups; group i has the samples `members[starts[i]:starts[i] + lengths[i]]`.

        Without `members`, the indices are the samples. `listed`: each pass keeps this order;
        otherwise passes are pseudo-random.
        """
        self.lengths = lengths
        self._starts, self._members, self._listed = starts, members, listed
        self.crc = _crc([listed], lengths, starts, [] if members is None else members)

    def entries(self, key: int, numbers: IntArray, ordinals: IntArray) -> IntArray:
        """See `Sources`."""
        lengths = self.lengths[numbers]
        passes, indices = np.divmod(ordinals, lengths)
        if not self._listed:
            indices = permuted(keys_of(key, numbers, passes), lengths, indices)
        places = self._starts[numbers] + indices
        return places if self._members is None else self._members[places]


class Drawn:
    """One source: samples from `start` on, drawn by their weights."""

    def __init__(self, start: int, draws: Draws) -> None:
        self.lengths = np.array([draws.length])
        self._start, self._draws = start, draws
        self.crc = _crc([start, draws.length], draws.ends)

    def entries(self, key: int, numbers: IntArray, ordinals: IntArray) -> IntArray:
        """See `Sources`."""
        passes, draws = np.divmod(ordinals, self._draws.length)
        keys = keys_of(key, numbers, passes)
        draws = permuted(keys, self.lengths[numbers], draws)
        return self._start + self._draws.at(keys, draws)


class Mixed:
    """One source that is a mixture of others, with fixed weights."""

    def __init__(self, mixture: Mixture, sources: Sources) -> None:
        self.lengths = np.array([sources.lengths[mixture.weights > 0].sum()])
        self._mixture, self._sources = mixture, sources
        self.crc = _crc([sources.crc], mixture.weights)

    def entries(self, key: int, numbers: IntArray, ordinals: IntArray) -> IntArray:
        """See `Sources`."""
        return self._sources.entries(hashed(key), *self._mixture.at(ordinals))


class Joined:
    """The sources of several families, each of one source."""

    def __init__(self, families: Sequence[Sources]) -> None:
        self.lengths = np.concatenate([each.lengths for each in families])
        self._families = families
        self.crc = _crc([each.crc for each in families])

    def entries(self, key: int, numbers: IntArray, ordinals: IntArray) -> IntArray:
        """See `Sources`."""
        samples = np.empty(ordinals.shape, np.int64)
        for number, family in enumerate(self._families):
            chosen = numbers == number
            own = ordinals[chosen]
            samples[chosen] = family.entries(hashed(key, number), np.zeros_like(own), own)
        return samples


def _crc(*parts: Any) -> int:
    crc = 0
    for part in parts:
        crc = zlib.crc32(np.ascontiguousarray(part, "<i8").data, crc)
    return crc


def by_label(labels: IntArray, start: int = 0) -> tuple[list[int], Groups]:
    """The labels of samples in ascending order, and a group for each.

    `labels` are of the samples from `start` on.
    """
    members = None
    if (np.diff(labels) < 0).any():  # the labels of a listed tree ascend
        members = np.argsort(labels, kind="stable")
        labels = labels[members]
    values, starts, lengths = np.unique(labels, return_index=True, return_counts=True)
    if members is None:
        starts = starts + start
    else:
        members += start
    return values.tolist(), Groups(starts, lengths, members)


def class_weights(sizes: Mapping[int, int], weights: Any) -> list[tuple[str, Any]]:
    """A weight for each class, by `weights`: "balanced", "sqrt", or numbers by label.

    Args:
        sizes: the number of samples of each label.
        weights: "balanced": 1 for each class. "sqrt": the square root of its size, which IEEE 754
            rounds alike on all machines. A mapping must name each label, and no other.

    Returns:
        Pairs of a name for messages and a weight, for `integer_weights()`.

    Raises:
        ValueError, TypeError: the weights are wrong.
    """
    if weights == "balanced":
        return [(f"label {label}", 1) for label in sizes]
    if weights == "sqrt":
        return [(f"label {label}", float(np.sqrt(size))) for label, size in sizes.items()]
    if not isinstance(weights, Mapping):
        raise TypeError(
            "weights must be 'balanced', 'sqrt', one number per label or one number per sample, "
            f"not {weights!r:.80}"
        )
    require_names("weights", weights, sizes)
    return [(f"label {label}", weights[label]) for label in sizes]


def require_names(what: str, given: Mapping[Any, Any], known: Mapping[Any, Any]) -> None:
    """Refuse a mapping with missing or unknown names."""
    if given.keys() != known.keys():
        lacks = _shown("; missing:", [name for name in known if name not in given])
        has = _shown("; unknown:", [name for name in given if name not in known])
        raise ValueError(f"{what} must name each of{_shown('', [*known])}{lacks}{has}")


def _shown(what: str, names: Sequence[Any]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{what} {', '.join(map(repr, names[:8]))}{more}" if names else ""
