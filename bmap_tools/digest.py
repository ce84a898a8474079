"""The digest of a map: that it says now what it said when it was made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .bmap_members import to_text

if TYPE_CHECKING:  # extent_map imports this module
    from .extent_map import ExtentMap

_DIGEST_BYTES = 16


def digest(extent_map: ExtentMap) -> str:
    """BLAKE2b (RFC 7693) of everything that a reader goes by, 32 hexadecimal digits.

    It finds damage and edits, not malice. docs/bmap.md says what it is made of.
    """
    header = {
        "created": extent_map.created,
        "root": to_text([extent_map.root])[0],
        "file_system": dataclasses.asdict(extent_map.file_system),
        "device": dataclasses.asdict(extent_map.device),
        "directories": to_text(extent_map.directories),
        "unmapped": sorted(extent_map.unmapped.items()),
    }
    hashed = hashlib.blake2b(_canonical(header), digest_size=_DIGEST_BYTES)
    hashed.update(extent_map.names)
    for column in (
        *(extent_map.name_offsets, extent_map.sizes, extent_map.inodes),
        *(extent_map.mtimes_ns, extent_map.ctimes_ns),
        *(extent_map.extent_offsets, extent_map.extents),
    ):
        hashed.update(np.ascontiguousarray(column, "<i8").data)
    return hashed.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
