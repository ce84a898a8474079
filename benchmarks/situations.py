"""The situations of a user, for `compare --in`: which samples are read, and from where."""

import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO

from dali_storage.samples.discovery import from_directory

from . import disk, environment, memory, s3, slow
from .workload import (
    NotHereError,
    Workload,
    compare_objects,
    epoch_of,
    open_shards,
    ordered,
    prepare,
)  # fmt: skip

Enter = Callable[[Workload, ExitStack], Workload]
"""Makes a workload out of that of --datadir. A NotHereError has what is missing for that."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One situation.

    Attributes:
        title: what the verdict calls it.
        legs: those of `table` that are compared, but for --readers.
    """

    title: str
    enter: Enter
    legs: tuple[str, ...]
    table: str = "compare"


def _hot(workload: Workload, _: ExitStack) -> Workload:
    environment.fill_page_cache(workload)
    return workload


def _cold(workload: Workload, _: ExitStack) -> Workload:
    return ordered(workload, cold=True)


def _twice(workload: Workload, stack: ExitStack) -> Workload:
    """Epochs 2 and 3: the first shows what a cache of half of the data then holds."""
    epoch = len(epoch_of(workload).order)
    stack.enter_context(memory.limited(int(workload.sizes.sum()) // 2))
    return ordered(workload, cold=True, batches=3 * epoch, untimed=epoch)


def _slow(workload: Workload, stack: ExitStack) -> Workload:
    if (count := len(workload.catalog)) < _MANY:
        what = f"{count:,} files; at least {_MANY:,} are needed"
        raise NotHereError(f"{what}: DALI's reader keeps 1,024 mapped, and would not read on")
    environment.fill_page_cache(workload)
    place = slow.mounted(str(workload.root), _directory(stack), _SECONDS)
    root = stack.enter_context(place)
    return replace(workload, root=root, catalog=from_directory(root))


def _image(workload: Workload, stack: ExitStack) -> Workload:
    """Cold, on ext4 in an image in memory."""
    root = str(workload.root)
    files = [os.fsdecode(path) for path in environment.files_of(workload)[:_COPIED]]
    size = 2 * sum(map(os.path.getsize, files)) + (64 << 20)
    directory = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    place = stack.enter_context(disk.mounted(directory, size))
    for file in files:
        copy = Path(place, "train", os.path.relpath(file, root))
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return prepare(place, replace(workload.settings, cold=True))


def _tars(workload: Workload, stack: ExitStack) -> Workload:
    return _hot(open_shards(workload, os.path.dirname(str(workload.root))), stack)


def _small(
    workload: Workload, stack: ExitStack, sides: tuple[int, int], batch: int, tars: bool = False
) -> Workload:
    """Noise of random sides in pixels, made for the run."""
    from . import dataset  # here: nothing else needs Pillow and google-crc32c

    directory, pick = _directory(stack), random.Random(0)
    for number in range(_SMALL):
        path = Path(directory, "train", f"class_{number % 10}", f"{number:05d}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dataset.noise(pick.randint(*sides), number))
    made = prepare(directory, replace(workload.settings, batch_size=batch))
    if not tars:
        return _hot(made, stack)
    dataset.pack(directory, lambda done: None, containers=1)
    return _tars(made, stack)


def serve(
    workload: Workload, stack: ExitStack, seconds: float, log: IO[str] | None = None
) -> Workload:
    """The files as objects, from a server on 127.0.0.1 that answers after so many seconds."""
    if not s3.is_there():
        raise NotHereError("its server is in a checkout only: git clone, then make demo")
    bucket, name = os.path.split(str(workload.root))
    serving = s3.serving(os.path.dirname(bucket), log or sys.stderr, seconds)
    stack.enter_context(s3.environment(stack.enter_context(serving)))
    workload = ordered(workload, url=f"s3://{os.path.basename(bucket)}/{name}")
    compare_objects(workload)
    return workload


def _directory(stack: ExitStack) -> str:
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-"))


_SECONDS = 0.001
_MANY = 4096
_COPIED = 2000
_SMALL = 4000
_HALF_KB, _FEW_KB = (12, 12), (22, 36)  # sides of noise; 500 bytes, and 1.5 to 4 KB
_DALI, _PLAIN = ("dali", "dali-nommap"), ("dali", "dali-nommap", "python-file")
_OF_TARS = ("dali-webdataset", "dali-webdataset-nommap", "webdataset")
_OF_OBJECTS = ("dali-s3-2", "dali-s3-32", "object-store")
"""Far away, DALI's two threads would read 62 images/s, and take most of the time."""
SITUATIONS = {
    "hot": Situation(
        "hot", _hot, (*_PLAIN, "memory", *(f"{leg}-decoded" for leg in _DALI), "decoded")
    ),
    "cold": Situation("cold", _cold, (*_PLAIN, "python-file-direct")),
    "twice": Situation("twice the memory", _twice, (*_PLAIN, "python-file-direct")),
    "slow": Situation("1 ms a request", _slow, _PLAIN),
    "image": Situation("cold ext4 image", _image, (*_PLAIN, "python-file-direct", "block")),
    "tars": Situation("hot", _tars, (*_OF_TARS, "webdataset-read"), "containers"),
    "small": Situation(
        "1.5 to 4 KB", partial(_small, sides=_FEW_KB, batch=256), (*_PLAIN, "memory")
    ),
    **{
        f"{form}-{batch}": Situation(
            f"500 bytes by {batch}",
            partial(_small, sides=_HALF_KB, batch=batch, tars=form == "tar"),
            *((_OF_TARS, "containers") if form == "tar" else (_PLAIN, "compare")),
        )
        for form in ("file", "tar")
        for batch in (1, 64)
    },
    **{
        f"objects-{ms}": Situation(
            f"objects {ms} ms", partial(serve, seconds=ms / 1000), _OF_OBJECTS[ms > 0 :], "objects"
        )
        for ms in (0, 30)
    },
}
