"""Lists of shards in JSON, which other tools have written."""

from __future__ import annotations

import json
import os
from typing import Any

from ..contract.objects import scheme


def parsed(path: bytes, text: bytes, what: str) -> dict[str, Any]:
    """Parse an object of JSON with `what`, as messages call it.

    Raises:
        ValueError: the text is something else; names the path.
    """
    try:
        found, why = json.loads(text), ""
    except (ValueError, RecursionError) as error:
        found, why = None, f": {error}"
    if not isinstance(found, dict):
        raise wrong(path, f"expected {what} in JSON{why}; the file may be cut: copy it again")
    return found


def below(path: bytes, name: Any) -> bytes:
    """Return the name of a shard; ValueError if it does not lie below the directory of the list."""
    found = encoded(path, name)
    parts = found.split(b"/")
    if not parts[0] or not parts[-1] or b".." in parts or b"\0" in found or scheme(found):
        what = f"{name!r} is not the name of a file below the data set"
        raise wrong(path, f"{what}; correct the list, or make it again")
    return found


def encoded(path: bytes, name: Any) -> bytes:
    """Return a path or URL in a list as bytes; ValueError if it is neither."""
    try:
        return os.fsencode(name)
    except (TypeError, UnicodeEncodeError) as error:
        raise wrong(path, f"{name!r:.80} is no path ({error}); make the list again") from None


def wrong(path: bytes, what: str) -> ValueError:
    """Return the error of a list; `what` is the defect and the remedy."""
    return ValueError(f"{os.fsdecode(path)!r}: {what}")
