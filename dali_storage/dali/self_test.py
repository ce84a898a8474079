"""Comparison of this package with `fn.readers.file`, in a DALI newer than the tested versions.

DALI may change its order silently, as in 2.2. The files of the comparison are in memory.
"""

import functools
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import fn

from ..contract import registry
from ..contract.catalog import Catalog
from ..contract.errors import UntestedDali
from ..order import OrderOptions
from ..reading.opening import Opening
from .comparing import VARIANTS, Read, pairs, pipeline_of
from .compat import DALI_FILE, NEWEST, REMEDY, SHUFFLE_BITS, TESTED, VERSION
from .executor import extend_pipelines
from .group import ReaderGroup

VARIABLE = "DALI_STORAGE_UNTESTED_DALI"
"""The environment variable that permits readers although they differ from DALI's."""

_DRAW = "a random operator behind the reader"
_FILES, _BATCH, _BATCHES = 8, 3, 7  # more than two epochs


@functools.cache
def require_same_order() -> None:
    """Compare order, random numbers and checkpoints with a DALI newer than tested.

    This is done once per process. If all are equal, an `UntestedDali` warning says so.

    Raises:
        RuntimeError: one of them differs; names the differences.
    """
    if TESTED:
        return
    extend_pipelines()
    # In a thread of its own, which has no current pipeline.
    with ThreadPoolExecutor(1) as thread:
        differs = thread.submit(lambda: [*_differences()]).result()
    newest = ".".join(map(str, NEWEST))
    what = f"DALI {VERSION} is newer than {newest}, the newest version tested with dali_storage"
    if not differs:
        equal = "found equal order, random numbers and checkpoints"
        warnings.warn(
            f"{what}; a comparison with fn.readers.file just now {equal}", UntestedDali, 4
        )
        return
    what += f". Compared with fn.readers.file: {'; '.join(differs)}"
    if os.environ.get(VARIABLE) != "1":
        raise RuntimeError(f"{what}. Either {REMEDY}; or set {VARIABLE}=1, at your own risk")
    warnings.warn(f"{what}. {VARIABLE}=1 allows the differences", UntestedDali, 4)


def _differences() -> Iterator[str]:
    """Descriptions of all differences, or of a failed comparison."""
    try:
        with ExitStack() as files:
            each = [bytes([number]) for number in range(_FILES)]
            yield from _compare([files.enter_context(in_memory(content)) for content in each])
    except Exception as error:
        yield f"no comparison, {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _compare(names: list[str]) -> Iterator[str]:
    catalog = Catalog.from_names([*map(os.fsencode, names)], np.arange(_FILES, dtype=np.int32))

    def ours(**order: Any) -> tuple[Any, ...]:
        options = OrderOptions(**order, shuffle_bits=SHUFFLE_BITS)
        reader = registry.load("python-file")
        opening = Opening(find=lambda *_: catalog, reader=reader, order=options)
        group = ReaderGroup("self-test", opening, takes_seed="seed" not in order)
        return group.add_outputs(with_index=False, preserve=False)

    def theirs(**order: Any) -> tuple[Any, ...]:
        return DALI_FILE(files=names, labels=[*range(_FILES)], **order)  # type: ignore[no-any-return]

    drawn = _drawing(ours), _drawing(theirs)
    for variant, more in (VARIANTS | {_DRAW: {}}).items():
        mine, real = drawn if variant == _DRAW else (ours, theirs)
        make = partial(pipeline_of, order={"initial_fill": 4, **more}, batch_size=_BATCH)
        found = pairs(make(mine), make(real), partial(make, mine), batches=_BATCHES, cut=2)
        first = next((each for each in found if each.got != each.wanted), None)
        if first is not None:
            yield f"a checkpoint with {variant} differs" if first.restored else f"{variant} differs"


def _drawing(read: Read) -> Read:
    """A reader with a random number in each sample, which comes from the pipeline's seed."""

    def outputs(**order: Any) -> Sequence[Any]:
        data, labels = read(**order)
        return data * fn.random.uniform(), labels

    return outputs


@contextmanager
def in_memory(content: bytes) -> Iterator[str]:
    """The path of a file held only in memory."""
    with os.fdopen(os.memfd_create("dali_storage"), "wb") as file:
        file.write(content)  # buffered, because one call of write(2) ends at 2 GiB
        file.flush()
        del content
        yield f"/proc/self/fd/{file.fileno()}"
