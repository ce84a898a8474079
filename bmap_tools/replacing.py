"""Writing a file so that it is complete or not there at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def replacing(path: str) -> Iterator[TextIO]:
    """An ASCII file that takes the place of `path` if the block ends well, and is removed if not.

    It is made beside `path`, with the permissions of any new file.
    """
    temporary = os.path.join(os.path.dirname(path), f".bmap-{secrets.token_hex(8)}.tmp")
    file = open(temporary, "x", encoding="ascii")  # noqa: SIM115 - the next `with` closes it
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # or a crash could leave the new name without the contents
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
