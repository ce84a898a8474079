"""The annotations of a COCO file: checked by us, parsed by DALI's own reader.

DALI's parser rounds differently from Python's, so the numbers come from DALI's own dump.
"""

import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise

from nvidia.dali import Pipeline

from ..contract.errors import ContainerChangedError
from ..contract.objects import scheme
from ..dali import failure
from ..dali.compat import own_reader
from ..dali.self_test import in_memory
from ..formats.coco import dump, origin
from ..formats.coco.annotations import Annotations
from ..formats.coco.check import check
from ..formats.coco.options import CocoOptions
from ..formats.coco.origin import Source

_COCO = own_reader("COCO")
_ROOM = 1 << 20  # bytes; a directory without has been full


def parse(
    source: Source, options: CocoOptions, target: str = ""
) -> tuple[list[bytes], Annotations]:
    """Check a JSON file, parse it by DALI, and return the names and annotations of the images.

    The dump is saved to the directory `target`, if given.

    Raises:
        ValueError: DALI cannot read the file correctly, see `check()`; or no image is left.
        OSError: the file cannot be read, or changes meanwhile; or `target` cannot be written.
    """
    about = f"annotations_file {os.fsdecode(source.name)!r}"
    if target:
        origin.require_writable(target)  # before minutes of work
    with ExitStack() as stack:
        state, content = source.state(), source.read()
        known = {**state, "checksum": zlib.crc32(content)}
        if scheme(source.name):
            path = stack.enter_context(in_memory(content))
        else:  # DALI accepts only text, but names are bytes
            path = f"/proc/self/fd/{stack.enter_context(open(source.name, 'rb')).fileno()}"
        text = content.decode("latin-1")
        size = len(content)
        del content  # may be large
        expected = check(about, text, options)
        if expected.unmasked:
            path = stack.enter_context(in_memory(_without_masks(text, expected.unmasked)))
        del text
        folder = stack.enter_context(_temporary_directory(size))
        # In a thread of its own, which has no current pipeline.
        thread = stack.enter_context(ThreadPoolExecutor(1))
        try:
            thread.submit(_dump, path, folder, options).result()
        except (RuntimeError, ValueError) as error:
            what = f"{about}: {failure(error).replace(path, 'the file')}"
            if "No files found" in what and options.skip_empty:
                what = f"skip_empty=True leaves no image of {about}"
            raise ValueError(what) from None
        if source.state() != state:
            raise ContainerChangedError(source.name, "changed while it was parsed; try again")
        dumped = dump.load(folder)
        names, found = dump.read(about, dumped, options)
    polygons = found.masks.polygons if found.masks else found.polygons
    if (lost := expected.lost(names, found.objects, polygons)) is not None:
        what = f"{about}: DALI's parser loses annotations of {os.fsdecode(lost)!r}, or their labels"
        raise ValueError(f"{what}; rewrite the file with Python's json")
    if target:
        origin.save(target, dumped, options, known)
    return names, found


def _without_masks(text: str, places: Sequence[int]) -> bytes:
    """Return the JSON file with an empty list as "segmentation" at these places."""
    bounds = pairwise([0, *places, len(text)])
    return b'"segmentation":[],'.join([text[it:end].encode("latin-1") for it, end in bounds])


@contextmanager
def _temporary_directory(size: int) -> Iterator[str]:
    """A directory for DALI's dump of annotations of about `size` bytes.

    Raises:
        OSError: it cannot be made; or it is full, which DALI reports as an error of reading, or not
            at all. Names the directory and TMPDIR.
    """
    with ExitStack() as stack:
        with _in_tmpdir(size):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dali_storage"))
        try:
            yield folder
        except ValueError:
            with _in_tmpdir(size), open(os.path.join(folder, "room"), "xb") as file:
                os.posix_fallocate(file.fileno(), 0, _ROOM)
            raise


@contextmanager
def _in_tmpdir(size: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"DALI's parser needs about {size:,} bytes here: set TMPDIR to another directory"
        raise OSError(error.errno, f"{error.strerror}; {what}", tempfile.tempdir) from None


def _dump(path: str, folder: str, options: CocoOptions) -> None:
    pipeline = Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        reader = _COCO(
            file_root="/",
            annotations_file=path,
            save_preprocessed_annotations=True,
            save_preprocessed_annotations_dir=folder,
            **options.given(),
        )
        pipeline.set_outputs(*reader())
    pipeline.build()  # and never run: no image is opened
