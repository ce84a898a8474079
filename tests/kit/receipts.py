"""The hashes and sums of receipts by hand: Python's integers, and xxhash itself."""

import os
import struct
from collections.abc import Iterable
from typing import Any

import xxhash

_Piece = tuple[str, int, bytes]


def sums_of(samples: Iterable[Iterable[_Piece]], mode: str) -> dict[str, Any]:
    """Count and sum of samples of pieces: name below the common directory, start, and bytes."""
    count, high, low = 0, 0, 0
    for pieces in samples:
        key = end = b""
        for name, start, content in pieces:
            key += (
                b"" if mode == "content" else os.fsencode(name) + b"\0" + struct.pack("<q", start)
            )
            end += struct.pack("<q", len(content))
            end += xxhash.xxh3_128_digest(content) if mode != "samples" else b""
        halves = divmod(xxhash.xxh3_128_intdigest(key + end), 2**64)
        count, high, low = count + 1, high + halves[0], low + halves[1]
    return {"count": count, "sum": f"{high % 2**64:016x}{low % 2**64:016x}"}


def sums(samples: Iterable[tuple[str, bytes]], mode: str) -> dict[str, Any]:
    """Count and sum of whole files: the name below the common directory, and the bytes."""
    return sums_of([[(name, 0, content)] for name, content in samples], mode)


def of(receipt: dict[str, Any]) -> dict[str, Any]:
    """Count and sum of a receipt."""
    return {name: receipt[name] for name in ("count", "sum")}
