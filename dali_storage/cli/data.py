"""`python -m dali_storage DATA`: how a directory, URL, container or index would be read here.

The rules are the reader's own: its backend is opened, and what it chose is printed with the
reasons. Of many files some are looked at: directories in random order, for two seconds.
"""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ..contract import registry
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable, named
from ..contract.objects import SCHEMES, scheme
from ..contract.ranges import Ranges
from ..observing.kernel import mount_of
from ..runtime import machine
from ..samples.discovery import chosen_by
from ..samples.finding import from_store
from ..samples.index_file import CatalogFile
from ..samples.locations import location
from .index import kind_of
from .table import print_wrapped

_UNITS = {"bytes": 0, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_PATIENCE_S, _LISTING_S, _SIZED = 20.0, 2.0, 1000
_CALLS = {"tar": "webdataset(paths", "TFRecord": "tfrecord(path", "LMDB": "lmdb(path"}
_BLOCK = "backend='block' on ext2 to ext4 and XFS: docs/extent-maps.md"
_LANES = "backend_options={'lanes': 32}"
_ADVICE = {  # what is read, and where: the gain over DALI's reader, and the option worth trying
    "files on disk": ("up to twice the images/s", _BLOCK),
    "files in memory": (
        "a third more images/s in the first epoch, later a sixth (page cache)",
        "backend='memory', if each process has memory for all files",
    ),
    "files elsewhere": ("several times the images/s where each request waits (NFS)", _LANES),
    "containers on disk": ("a third to a half more samples/s", _BLOCK),
    "containers in memory": (
        "a third more samples/s in the first epoch, later less than DALI's (page cache)",
        "backend_options={'io': 'mmap'}, then nearly twice DALI's: docs/containers.md",
    ),
    "containers elsewhere": ("not measured", _LANES),
    "objects": ("twice the images/s", "backend_options={'cache': '/a/local/disk'}"),
}


class _Some(Catalog):
    """Some of `sidecar["count"]` files: a backend that opens them chooses as for all."""

    @property
    def file_count(self) -> int:
        return int(self.sidecar["count"])

    def file_paths(self, files: IntArray) -> list[bytes]:
        return super().file_paths(files % (len(self.offsets) - 1))


def main(root: str) -> int:
    """Print what is found; errors go to stderr. Returns the exit status."""
    # A child looks: on a file system that hangs, a call may never return, not even when killed.
    # It has pipes of its own, for the end of ours must not depend on it.
    command, pipe = [sys.executable, "-m", __name__, root], subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace")
    try:
        report, error = child.communicate(timeout=_PATIENCE_S)
        status = child.returncode
    except subprocess.TimeoutExpired:
        child.kill()
        mount, status, report = mount_of(os.fsencode(os.path.abspath(root))), 2, ""
        why = "its list is long" if "://" in root else f"it hangs, or is slow: {mount}"
        error = f"error: {root!r} gave no answer for {_PATIENCE_S:.0f} s: {why}\n"
    print(report, end="", flush=True)
    print(error, end="", file=sys.stderr)
    return status


def examine(root: str) -> None:
    """Print how `root` would be read; raises OSError, ValueError or BackendUnavailable."""
    call, catalog, count, some = _find(location("DATA", root))
    if scheme(catalog.root):
        _examine_objects(call, catalog)
        return
    backend: Any = registry.load("python-file")
    with backend(catalog, lanes=1) as reader:
        sample = np.random.default_rng(0).permutation(len(catalog))[:_SIZED]
        nbytes = round(count * reader.sizes(sample, 0).mean())
    kind = "containers" if call.partition("=")[0] in _CALLS.values() else "files"
    if kind == "containers":
        columns = np.arange(count), np.zeros(count, np.int64), np.full(count, nbytes // count)
        catalog = replace(catalog, ranges=Ranges.of_columns(*columns))
    elif some:
        catalog = _Some(catalog.root, catalog.names, catalog.offsets, catalog.labels)
        catalog.sidecar["count"] = count
    direct, ring = "works", next(it.problem for it in backend.devices() if "uring" in it.name)
    try:
        backend(catalog, direct=True).close()
    except OSError as error:
        direct = f"does not work ({error.strerror})"
    with backend(catalog) as reader:
        choices = dict(reader.choices)
    memory = machine.cache_memory()
    choices["buffer_bytes"] = machine.buffer_bytes(memory)
    place = "in memory" if choices["lanes"] == machine.lanes(True) else "elsewhere"
    number = f"{some}{count:,} {kind.removesuffix('s' * (count == 1))}"
    _say("data", f"{number}, {'about ' * (count > _SIZED)}{_size(nbytes)}")
    _say("file system", mount_of(os.path.realpath(catalog.file_path(0))) or "unknown")
    _say("O_DIRECT", direct)
    _say("io_uring", f"does not work: {ring}" if ring else "works")
    if memory is not None:
        _say("page cache", f"{_size(memory)}; {_size(machine.KEPT * memory)} may hold data")
    _say("reader", f"readers.{call}), backend python-file; without options:")
    for name, choice in choices.items():
        _say(f"  {name}", choice)
    _advise(f"{kind} {'on disk' if choices['direct'].value else place}")


def _examine_objects(call: str, catalog: Catalog) -> None:
    backend: Any = registry.load("object-store")
    for store in backend.devices():
        if store.name == f"{scheme(catalog.root)}://":
            _say("store", f"{store.kind}: {store.problem}" if store.problem else store.kind)
    _say("reader", f"readers.{call}), backend object-store")
    _advise("objects")
    if (sizes := catalog.sizes) is None:
        sizes = from_store(backend.remote(retry=0.0), catalog.root).sizes
    assert sizes is not None
    _say("data", f"{sizes.size:,} objects, {_size(int(sizes.sum()))}")


def _find(path: bytes) -> tuple[str, Catalog, int, str]:
    """Return the call of a reader, files that it would read, and how many there are.

    The text is "about " or "at least " if not all have been listed.
    """
    root = os.fsdecode(path)
    call = f"file(file_root={root!r}"
    if scheme(path):
        return call, Catalog.from_names([], [], path), 0, ""
    if os.path.isdir(path):
        return _find_below(path, call)
    try:
        with named():
            os.stat(path)
    except FileNotFoundError:
        what = f"{root!r} does not exist; a URL begins with {'://, '.join(SCHEMES)}://"
        raise ValueError(what) from None
    if os.path.isfile(path) and (reader := _container(path)):
        return f"{reader}={root!r}", Catalog.from_names([path], [0]), 1, ""
    catalog = CatalogFile(path).catalog()
    return call, catalog, len(catalog), ""


def _find_below(path: bytes, call: str) -> tuple[str, Catalog, int, str]:
    until, found, listed, some = time.monotonic() + _LISTING_S, list[bytes](), 0, ""
    files, classes = _list(path, until)
    same, pattern = _usual(path, files)
    if same and (reader := _container(os.path.join(path, min(same)))):
        catalog = Catalog.from_names(same, range(len(same)), path)
        return f"{reader}=glob.glob({pattern!r})", catalog, len(same), ""
    random.Random(0).shuffle(classes)
    for listed, each in enumerate(classes, 1):
        found += [os.path.join(each, it) for it in _list(os.path.join(path, each), until)[0]]
        if time.monotonic() > until:
            some = "about " if listed > 1 else "at least "
            break
    if not found:
        shown, parent = os.fsdecode(path), os.fsdecode(os.path.dirname(os.path.abspath(path)))
        what = f"{shown!r} has no files in directories: if it is a class itself, give {parent!r}"
        what = (
            f"{shown!r} has only directories in directories; give one of them" if classes else what
        )
        raise ValueError(what if files or classes else f"{shown!r} is empty")
    if not (images := chosen_by()[0](found)):
        images, pattern = _usual(os.path.join(path, b"*"), found)
        if reader := _container(os.path.join(path, images[0])):
            call = f"{reader}=glob.glob({pattern!r})"
        else:
            call += f", file_filters={os.path.basename(pattern)!r}"
    catalog = Catalog.from_names(images, range(len(images)), path)
    return call, catalog, len(images) * len(classes) // listed, some


def _container(path: bytes) -> str:
    """Return the call that reads a container, without its value; "" for another file."""
    with suppress(ValueError):
        return _CALLS[kind_of(os.fsdecode(path)).name]
    return ""


def _list(path: bytes, until: float) -> tuple[list[bytes], list[bytes]]:
    """Return the files and the directories in a directory; those that are met until then."""
    names: tuple[list[bytes], list[bytes]] = [], []
    with named(), os.scandir(path) as entries:
        for entry in entries:
            names[entry.is_dir()].append(entry.name)
            if time.monotonic() > until:
                break
    return names


def _usual(path: bytes, names: list[bytes]) -> tuple[list[bytes], str]:
    """Return the names with the most common extension, and their pattern."""
    ends = Counter(os.path.splitext(it)[1] for it in names)
    end = max(ends, key=lambda it: (it != b".idx", ends[it]), default=b".")
    return [it for it in names if it.endswith(end)], os.fsdecode(os.path.join(path, b"*" + end))


def _size(nbytes: float) -> str:
    unit = next(it for it in ("TB", "GB", "MB", "kB", "bytes") if nbytes >= _UNITS[it])
    return f"{nbytes / max(_UNITS[unit], 1):,.{int(unit in ('GB', 'TB'))}f} {unit}"


def _advise(case: str) -> None:
    gain, option = _ADVICE[case]
    limit = "nothing where decoding or the model is the limit"
    _say("expect", f"compared with DALI's reader, samples read, not decoded: {gain}; {limit}")
    _say("worth a try", option)


def _say(label: str, text: object) -> None:
    print_wrapped(f"{label:<15} ", str(text))


if __name__ == "__main__":
    try:
        examine(sys.argv[1])
    except (BackendUnavailable, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
