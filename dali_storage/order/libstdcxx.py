"""The random numbers of libstdc++, bit for bit: seed_seq, engines, distributions, std::shuffle.

DALI's order depends on them. Draws are vectorised, and yet rejection must be exact: after rejecting
an output, a distribution draws the next one, which shifts every later draw.
"""

import math
from collections.abc import Callable
from itertools import accumulate, repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray
from .shards import Indices

Words: TypeAlias = npt.NDArray[np.uint64]
"""uint64[n], outputs of an engine: of 64 bits, or of 32 bits in the low half."""

WordSource: TypeAlias = Callable[[int], Words]
"""An engine: called with n, it returns its next n outputs."""

_WORD32 = 0xFFFF_FFFF
_WORD64 = 0xFFFF_FFFF_FFFF_FFFF
_UPPER, _LOWER = np.uint64(0xFFFF_FFFF_8000_0000), np.uint64(0x7FFF_FFFF)  # of mt19937_64
_ONE, _TWIST = np.uint64(1), np.uint64(0xB502_6F5A_A966_19E9)
_MINSTD_MODULUS = 2**31 - 1
_MINSTD_RANGE = _MINSTD_MODULUS - 2  # max() - min() of std::minstd_rand0
_MINSTD_BLOCK = 4096  # draws at a time: the block and its powers stay in the L1 and L2 caches
_LEMIRE_BLOCK = 1024  # draws at a time: a rejection wastes the rest of the block
_SHUFFLE_HEAD = 4096  # first items, whose swaps share too many items to be made at once


def seed_words(seed: int, count: int) -> list[int]:
    """`std::seed_seq{seed}.generate()` of at least two 32-bit words (libstdc++, bits/random.tcc).

    Only the low 32 bits of the seed matter; every word depends on `count`.
    """
    words = [0x8B8B8B8B] * count
    lags = ((623, 11), (68, 7), (39, 5), (7, 3), (0, (count - 1) // 2))
    lag = next(lag for least, lag in lags if count >= least)
    near = (count - lag) // 2
    far = near + lag
    for step in range(2 * count):
        here, there, beyond = step % count, (step + near) % count, (step + far) % count
        if step < count:
            mixed = _mix(words[here] ^ words[there] ^ words[here - 1], 1664525)
            shifted = mixed + (1 if step == 0 else here + seed if step == 1 else here)
            words[there] = (words[there] + mixed) & _WORD32
            words[beyond] = (words[beyond] + shifted) & _WORD32
        else:
            mixed = _mix((words[here] + words[there] + words[here - 1]) & _WORD32, 1566083941)
            shifted = mixed - here
            words[there] ^= mixed
            words[beyond] ^= shifted & _WORD32
        words[here] = shifted & _WORD32
    return words


def _mix(word: int, factor: int) -> int:
    return (word ^ (word >> 27)) * factor & _WORD32


class Minstd:
    """`std::minstd_rand0` seeded by a seed_seq, and `std::uniform_int_distribution<int>` on it.

    libstdc++'s std::default_random_engine: x = 16807 x mod 2**31 - 1 (bits/random.h, random.tcc).
    `state` is the last output; assign to `state` to go back.
    """

    def __init__(self, seed: int) -> None:
        self.state = seed_words(seed, 4)[3] % _MINSTD_MODULUS or 1
        powers = accumulate(repeat(16807, _MINSTD_BLOCK), lambda a, b: a * b % _MINSTD_MODULUS)
        self._powers: Words = np.fromiter(powers, np.uint64, _MINSTD_BLOCK)

    def draw(self, bounds: IntArray) -> IntArray:
        """A number from each range 0 to bound - 1; a range of one number costs a draw, too.

        Bounds and numbers are int64[n], bounds from 1 to 2**31 - 3.
        """
        numbers = np.empty_like(bounds)
        largest, done = int(bounds.max(initial=1)), 0
        while done < len(bounds):
            accepted = self._accepted(done, len(bounds) - done, largest, bounds.item)
            stop = done + len(accepted)
            # Equal parts of the range; the remainder was rejected (bits/uniform_int_dist.h).
            numbers[done:stop] = accepted // (_MINSTD_RANGE // bounds[done:stop])
            done = stop
        return numbers

    def skip(self, count: int, largest: int, bound: Callable[[int], int]) -> None:
        """Advance as `draw()` would for `count` bounds: bound(0), bound(1) and so on.

        No bound exceeds `largest`. `bound` is called for few indices.
        """
        done = 0
        while done < count:
            done += len(self._accepted(done, count - done, largest, bound))

    def _accepted(
        self, first: int, count: int, largest: int, bound: Callable[[int], int]
    ) -> IntArray:
        """At most `count` outputs minus min(), accepted by bound(first), bound(first + 1)..."""
        outputs = self._outputs(min(count, _MINSTD_BLOCK)) - 1
        rejected: list[int] = []
        # The remainder is smaller than the bound, so only the largest outputs may be rejected.
        if outputs.max() > _MINSTD_RANGE - largest:
            for index in np.flatnonzero(outputs > _MINSTD_RANGE - largest).tolist():
                # A rejected output uses up no bound, so the later ones serve earlier bounds.
                limit = _MINSTD_RANGE - _MINSTD_RANGE % bound(first + index - len(rejected))
                if outputs[index] >= limit:
                    rejected.append(index)
        return np.delete(outputs, rejected) if rejected else outputs

    def _outputs(self, count: int) -> IntArray:
        products = self._powers[:count] * np.uint64(self.state)  # below 2**62
        folded = (products & np.uint64(_MINSTD_MODULUS)) + (products >> np.uint64(31))
        # At most one subtraction remains; an unneeded subtraction wraps around to a huge number.
        outputs = np.minimum(folded, folded - np.uint64(_MINSTD_MODULUS)).view(np.int64)
        self.state = int(outputs[-1])
        return outputs


def mt19937(seed: int) -> WordSource:
    """`std::mt19937`, which has the same outputs as numpy's legacy generator."""
    state = np.random.RandomState(seed)
    return lambda count: state.randint(0, 2**32, count, np.uint32).astype(np.uint64)


class Mt19937_64:  # noqa: N801 - the usual name
    """`std::mt19937_64` (Matsumoto and Nishimura's mt19937-64.c; libstdc++, bits/random.tcc)."""

    def __init__(self, seed: int) -> None:
        words = [seed & _WORD64]
        for index in range(1, 312):
            mixed = words[-1] ^ (words[-1] >> 62)
            words.append((6364136223846793005 * mixed + index) & _WORD64)
        self._state: Words = np.array(words, np.uint64)

    def __call__(self, count: int) -> Words:
        """The next outputs: uint64, `count` of them rounded up to whole blocks of 156."""
        made = -(-count // 156) * 156
        words = np.concatenate([self._state, np.empty(made, np.uint64)])
        # A word depends on the words 312, 311 and 156 before, so 156 can be made at once.
        for start in range(0, made, 156):
            old = words[start : start + 313]
            mixed = (old[:156] & _UPPER) | (old[1:157] & _LOWER)
            twisted = (mixed >> _ONE) ^ ((mixed & _ONE) * _TWIST)
            np.bitwise_xor(old[156:312], twisted, out=words[start + 312 : start + 468])
        self._state = words[-312:].copy()
        return _temper(words[312:])


def _temper(words: Words) -> Words:
    words = words ^ ((words >> np.uint64(29)) & np.uint64(0x5555555555555555))
    words ^= (words << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
    words ^= (words << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
    return words ^ (words >> np.uint64(43))


def draw_below(engine: WordSource, bits: int, bounds: Words) -> Words:
    """`std::uniform_int_distribution` on an engine whose outputs fill words of 32 or 64 `bits`.

    The method of Lemire, "Fast Random Integer Generation in an Interval", 2019 (libstdc++ since
    GCC 11, bits/uniform_int_dist.h): the number is the high word of output times bound, and very
    small low words mean rejection. Bounds are from 1 to 2**bits - 1. Surplus outputs are lost.
    """
    numbers = np.empty_like(bounds)
    outputs, done = engine(_LEMIRE_BLOCK), 0
    while done < len(bounds):
        block = bounds[done : done + _LEMIRE_BLOCK]
        if len(outputs) < len(block):
            outputs = np.concatenate([outputs, engine(_LEMIRE_BLOCK)])
        high, low = _multiply(outputs[: len(block)], block, bits)
        accepted = _first_rejected(low, block, bits)
        numbers[done : done + accepted] = high[:accepted]
        # The rejected output is lost, and its bound gets the next one.
        outputs = outputs[accepted + (accepted < len(block)) :]
        done += accepted
    return numbers


def _multiply(left: Words, right: Words, bits: int) -> tuple[Words, Words]:
    """The high and the low word of the products."""
    half, mask = np.uint64(32), np.uint64(_WORD32)
    if bits == 32:
        product = left * right
        return product >> half, product & mask
    # A product of 64 bits wraps around, so its high word is composed of halves.
    left_high, left_low = left >> half, left & mask
    right_high, right_low = right >> half, right & mask
    middle = left_high * right_low + (left_low * right_low >> half)
    carry = left_low * right_high + (middle & mask)
    return left_high * right_high + (middle >> half) + (carry >> half), left * right


def _first_rejected(low: Words, bounds: Words, bits: int) -> int:
    """Index of the first low word below 2**bits mod its bound, else the number of words."""
    # A limit is below its bound, so few words need the division.
    suspects = np.flatnonzero(low < bounds)
    suspected = bounds[suspects]
    # Bound subtracted first: 2**bits does not fit into a word.
    limits = (np.uint64(2**bits - 1) - suspected + np.uint64(1)) % suspected
    rejected = suspects[low[suspects] < limits]
    return int(rejected[0]) if len(rejected) else len(low)


def shuffled(items: Indices, engine: WordSource, bits: int) -> Indices:
    """`std::shuffle` of a copy of `items`, at least one, by a new engine (bits/stl_algo.h)."""
    swaps = _swaps(len(items), engine, bits)
    first = items[:_SHUFFLE_HEAD].tolist()
    for here, there in enumerate(swaps[: len(first) - 1].tolist(), 1):
        first[here], first[there] = first[there], first[here]
    order = items.copy()
    order[: len(first)] = first
    here = len(first)
    while here < len(order):
        # Swaps that share no item can be made at once; in a block of this size, they rarely do.
        block = swaps[here - 1 : here - 1 + math.isqrt(here) // 2]
        while not _apart(block, here):
            block = block[: len(block) // 2]
        stop = here + len(block)
        # A copy, because a slice is a view, and the first assignment writes to it.
        order[here:stop], order[block] = order[block], order[here:stop].copy()
        here = stop
    return order


def _apart(swaps: IntArray, first: int) -> bool:
    """Return whether these swaps, of the items from index `first` on, share no item."""
    partners = np.sort(swaps)
    unique = bool((partners[1:] != partners[:-1]).all())
    return len(swaps) == 1 or (unique and int(partners[-1]) < first)


def _swaps(size: int, engine: WordSource, bits: int) -> IntArray:
    """The partner of each item but the first, at or before it: int64[size - 1]."""
    if (2**bits - 1) // size < size:
        return draw_below(engine, bits, np.arange(2, size + 1, dtype=np.uint64)).view(np.int64)
    # One output makes two swaps if the product of their ranges fits; an even size leaves one over.
    alone = 1 - size % 2
    second = np.arange(2 + alone + 1, size + 1, 2, dtype=np.uint64)
    bounds = np.concatenate([np.full(alone, 2, np.uint64), second * (second - np.uint64(1))])
    numbers = draw_below(engine, bits, bounds)
    swaps = np.empty(size - 1, np.uint64)
    swaps[:alone] = numbers[:alone]
    np.divmod(numbers[alone:], second, out=(swaps[alone::2], swaps[alone + 1 :: 2]))
    return swaps.view(np.int64)
