"""The extent map that the leg `block` goes by: the user's, or one that is made for the run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from bmap_tools import create
from bmap_tools.device import UnsupportedStorage
from dali_storage import registry
from dali_storage.errors import BackendUnavailable

from .legs import BLOCK, block_options
from .measure import Results
from .work import BadInputError, Work, explain


@contextmanager
def mapped(work: Work, results: Results) -> Iterator[Work]:
    """The work with a map, if the leg `block` is to run; why it cannot, in `results`.

    Raises:
        BadInputError: the user's map or device does not fit.
    """
    block = results.get(BLOCK.name)
    if block is None or not block.runs:
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        made = os.path.join(directory, "bmap.json")
        work = replace(work, bmap=work.settings.bmap or made)
        try:
            if work.bmap == made:
                create.run(work.root, made, threads=work.settings.threads)
            registry.configure(BLOCK.name, block_options(work)).open(work.catalog).close()
        except (BackendUnavailable, UnsupportedStorage) as reason:
            block.skipped = str(reason)
        except (OSError, ValueError) as error:
            given = {"--bmap": work.settings.bmap, "--uri": work.settings.uri}
            options = " ".join(f"{name} {path}" for name, path in given.items() if path is not None)
            if options:
                raise BadInputError(f"{options}: {explain(error)}") from error
            block.failed = explain(error)
        yield work
