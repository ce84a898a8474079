"""Files that are replaced as a whole, or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import BinaryIO


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """A file that becomes the one at the path `target` at the end of the block, unless it fails."""
    # Random, because other machines and containers have processes of the same number; short,
    # because the name of the target may be as long as a name can be.
    part = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave a name without its bytes
        os.replace(part, target)
    except OSError as error:
        if error.filename != part:  # which means nothing to the user
            raise
        raise OSError(error.errno, error.strerror, target) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
