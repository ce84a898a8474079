"""Pseudo-random permutations without memory: each entry by itself, alike on all machines.

The generator is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators, 2014), which works on arrays of counters. The streams of numpy's `Generator` may
change between versions (NEP 19).
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray

KeyArray: TypeAlias = npt.NDArray[np.uint64]

_U = np.uint64
_FIRST, _SECOND, _STEP = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_ROUNDS = 6
_FEW, _ROUNDS_OF_FEW = 128, 24  # of so few entries, permutations by 6 rounds are not uniform


def hashed(*words: int) -> int:
    """A key of 64 bits of several integers of any size."""
    key = 0
    for word in words:
        key = ((key ^ (word & _MASK)) + _STEP) & _MASK
        key = (key ^ key >> 30) * _FIRST & _MASK
        key = (key ^ key >> 27) * _SECOND & _MASK
        key ^= key >> 31
    return key


def mixed(words: KeyArray) -> KeyArray:
    """SplitMix64's finaliser of each word: uint64[n]."""
    words = (words ^ (words >> _U(30))) * _U(_FIRST)
    words = (words ^ (words >> _U(27))) * _U(_SECOND)
    return words ^ (words >> _U(31))


def keys_of(key: int, sources: IntArray, passes: IntArray) -> KeyArray:
    """A key for each pair of a source and one of its passes: uint64[n]."""
    keys = mixed(sources.astype(np.uint64) + _U(key))
    return mixed(keys + passes.astype(np.uint64) * _U(_STEP))


def permuted(keys: KeyArray, sizes: IntArray, indices: IntArray) -> IntArray:
    """The image of each index in the permutation by its key: int64[n], below the size of each.

    An alternating Feistel network on the least number of bits for a size, repeated until the result
    is below the size (cycle walking; Black, Rogaway: Ciphers with arbitrary finite domains, 2002).
    All are arrays of n entries.
    """
    few = sizes <= _FEW
    if not few.any():
        return _walked(keys, sizes, indices, _ROUNDS)
    if few.all():
        return _walked(keys, sizes, indices, _ROUNDS_OF_FEW)
    places = np.empty(indices.shape, np.int64)
    for chosen, rounds in ((few, _ROUNDS_OF_FEW), (~few, _ROUNDS)):
        places[chosen] = _walked(keys[chosen], sizes[chosen], indices[chosen], rounds)
    return places


def _walked(keys: KeyArray, sizes: IntArray, indices: IntArray, rounds: int) -> IntArray:
    places, todo = np.empty(indices.shape, np.int64), np.arange(indices.size)
    # The exponent of a float is the number of bits, exactly below 2**53.
    bits = np.maximum(np.frexp((sizes - 1).astype(np.float64))[1], 2).astype(np.uint64)
    words, ends = indices.astype(np.uint64), sizes.astype(np.uint64)
    while todo.size:
        words = _encrypted(words, keys, bits, rounds)
        inside = words < ends
        places[todo[inside]] = words[inside]
        left = ~inside
        todo, words = todo[left], words[left]
        keys, bits, ends = keys[left], bits[left], ends[left]
    return places


def _encrypted(words: KeyArray, keys: KeyArray, bits: KeyArray, rounds: int) -> KeyArray:
    """One walk through the network: a permutation of the words of so many bits, at least 2."""
    low = bits >> _U(1)
    low_mask, high_mask = (_U(1) << low) - _U(1), (_U(1) << (bits - low)) - _U(1)
    left, right = words >> low, words & low_mask
    for number in range(1, rounds + 1):
        key = keys + _U(number * _STEP & _MASK)
        if number % 2:
            left = (left ^ _scrambled(right ^ key)) & high_mask
        else:
            right = (right ^ _scrambled(left ^ key)) & low_mask
    joined: KeyArray = (left << low) | right
    return joined


def _scrambled(words: KeyArray) -> KeyArray:
    words = words * _U(_FIRST)
    words = (words ^ (words >> _U(32))) * _U(_SECOND)
    return words >> _U(29)
