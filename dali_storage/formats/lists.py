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
    except ValueError as error:
        found, why = None, f": {error}"
    if not isinstance(found, dict):
        raise wrong(path, f"expected {what} in JSON{why}; the file may be cut: copy it again")
    return found


def below(path: bytes, name: Any) -> str:
    """Return the name of a shard; ValueError if it does not lie below the directory of the list."""
    if (
        not isinstance(name, str)
        or not name
        or "\0" in name
        or name.startswith("/")
        or ".." in name.split("/")
        or scheme(os.fsencode(name))
    ):
        raise wrong(
            path, f"{name!r} is not the name of a file below the data set; correct the list"
        )
    return name


def wrong(path: bytes, what: str) -> ValueError:
    """Return the error of a list; `what` is the defect and the remedy."""
    return ValueError(f"{os.fsdecode(path)!r}: {what}")
