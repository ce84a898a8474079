"""The stream of a mixture by a plain walk, one position after the other.

It has counters, fractions and Python's integers of any size, and not the code under test. Of the
permutations, the docstrings of `dali_storage.order.sampling` say only what they are, so their
numbers are repeated here.
"""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

WORD = 2**64
STEP, FACTORS = 0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def split_mix(word: int) -> int:
    for shift, factor in zip((30, 27), FACTORS, strict=True):
        word = (word ^ word >> shift) * factor % WORD
    return word ^ word >> 31


def key_of(*words: int) -> int:
    key = 0
    for word in words:
        key = split_mix(((key ^ word % WORD) + STEP) % WORD)
    return key


def place(key: int, size: int, index: int) -> int:
    """Where a permutation has an index: a Feistel network, repeated until it is below the size."""
    bits = max(2, (size - 1).bit_length())
    low = bits // 2
    while True:
        halves = [index >> low, index % 2**low]
        for number in range(24 if size <= 128 else 6):
            other = halves[1 - number % 2] ^ (key + (number + 1) * STEP) % WORD
            word = other * FACTORS[0] % WORD
            word = (word ^ word >> 32) * FACTORS[1] % WORD
            halves[number % 2] ^= (word >> 29) % 2 ** (low if number % 2 else bits - low)
        index = halves[0] * 2**low + halves[1]
        if index < size:
            return index


@dataclass
class Fork:
    """A node of the tree, which has given `lefts` of its `seen` positions to the left."""

    left: "Fork | int"  # the number of a source
    right: "Fork | int"
    share: Fraction  # of the left one
    seen: int = 0
    lefts: int = 0

    def next(self) -> "Fork | int":
        self.seen += 1
        before, self.lefts = self.lefts, self.lefts_of(self.seen)
        return self.left if self.lefts > before else self.right

    def lefts_of(self, seen: int) -> int:
        return floor(seen * self.share + Fraction(1, 2))

    def jump(self, seen: int) -> None:
        self.seen, self.lefts = seen, self.lefts_of(seen)
        for side, count in ((self.left, self.lefts), (self.right, seen - self.lefts)):
            if isinstance(side, Fork):
                side.jump(count)


def tree(weights: Sequence[int]) -> Fork | int:
    """That of Huffman. Of equal weights, the first source, then the first fork is the lighter."""
    nodes: list[tuple[int, int, Fork | int]] = []
    for source, weight in enumerate(weights):
        if weight:
            insort(nodes, (weight, source, source))
    for serial in range(len(weights), len(weights) + len(nodes) - 1):
        (light, _, left), (heavy, _, right), *nodes = nodes
        fork = Fork(left, right, Fraction(light, light + heavy))
        insort(nodes, (light + heavy, serial, fork), key=lambda node: node[:2])
    return nodes[0][2]


def sources_of(weights: Sequence[int], start: int = 0) -> Iterator[int]:
    """The source of each position from `start` on."""
    root = tree(weights)
    if isinstance(root, Fork):
        root.jump(start)
    while True:
        node = root
        while isinstance(node, Fork):
            node = node.next()
        yield node


class Shuffled:
    """A source with the samples start to start + size - 1."""

    def __init__(self, start: int, size: int) -> None:
        self.start, self.size = start, size

    def sample(self, key: int, index: int) -> int:
        return self.start + place(key, self.size, index)


class Weighted:
    """A source with draws of the samples 0 to len(weights) - 1, by systematic sampling."""

    def __init__(self, weights: Sequence[int], draws: int) -> None:
        self.ends = [sum(weights[: index + 1]) for index in range(len(weights))]
        self.size = draws

    def sample(self, key: int, index: int) -> int:
        offset = split_mix(~key % WORD) % self.ends[-1]
        target = Fraction(place(key, self.size, index) * self.ends[-1] + offset, self.size)
        return bisect_right(self.ends, floor(target))


def walk(
    seed: int,
    sources: Sequence[Shuffled | Weighted],
    schedule: Sequence[tuple[int, Sequence[int]]],
    stop: int,
) -> list[tuple[int, int]]:
    """The source and the sample of the positions 0 to stop - 1."""
    counts, found = [0] * len(sources), list[tuple[int, int]]()
    pieces, following = dict(schedule), iter(())
    for position in range(stop):
        if position in pieces:
            following = sources_of(pieces[position])
        source = next(following)
        turn, index = divmod(counts[source], sources[source].size)
        counts[source] += 1
        key = split_mix((key_of(seed) + source) % WORD)
        key = split_mix((key + turn * STEP) % WORD)
        found.append((source, sources[source].sample(key, index)))
    return found
