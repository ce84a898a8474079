"""Atomic replacement of files."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """Open a temporary file, which replaces `target` at the end of the block, unless that fails."""
    # Random, because process numbers repeat on other machines and in containers; short, because
    # the name of the target may have the maximum length.
    part = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave a name without its bytes
        os.replace(part, target)
    except OSError as error:
        if error.filename != part:  # a name that means nothing to the user
            raise
        raise OSError(error.errno, error.strerror, target) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
