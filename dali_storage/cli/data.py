"""`python -m dali_storage DATA`: how a directory, URL, container or index would be read here.

Nothing is guessed: the reader's own functions find the samples and open their backend, which says
what it chose, and why. Of a large directory, some classes are listed, and some files are sized.
"""

import glob
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from bmap_tools.console import print_row

from ..contract import registry
from ..contract._types import IntArray
from ..contract.catalog import Catalog, join_path
from ..contract.errors import BackendUnavailable, named
from ..contract.objects import SCHEMES, scheme
from ..contract.ranges import Ranges
from ..observing.kernel import mount_of
from ..runtime import machine
from ..samples.discovery import Directory, from_tree
from ..samples.finding import find, locations
from ..samples.locations import location
from .index import kind_of

_PATIENCE_S, _CLASSES, _ENTRIES, _SIZED = 30.0, 30, 1_000_000, 500
_CALLS = {"tar": "webdataset(ext=..., paths=", "TFRecord": "tfrecord(path=", "LMDB": "lmdb(path="}
_ADVICE = {  # by what is read, and from where: the gain over DALI's reader; an option; its page
    "objects": ("twice as many", "backend_options={'cache': '/a/local/disk'}", "object-store"),
    "around": ("up to 3 times as many (containers: 1.5 times)", "backend='block'", "extent-maps"),
    "waiting": ("2 to 4 times as many if not cached", "backend_options={'direct': True}", "slow"),
    "files": ("a third more from disk, a tenth if cached", "backend='memory'", "backends"),
    "containers": ("half as many if cached", "backend_options={'io': 'mmap'}", "containers"),
}


class _Sampled(Directory):
    """A directory of which some classes stand for all; `cut`: not all entries were listed."""

    share, cut = 1.0, False

    def __init__(self, root: bytes) -> None:
        super().__init__(root, self._some)

    @contextmanager
    def _some(self, path: bytes) -> Iterator[Iterator[os.DirEntry[bytes]]]:
        with os.scandir(path) as entries:
            yield islice(entries, _ENTRIES)
            self.cut |= next(entries, None) is not None

    def directories(self) -> list[bytes]:
        names = super().directories()
        some = random.Random(0).sample(names, min(len(names), _CLASSES))
        self.share = len(some) / max(len(names), 1)
        return some


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
        mount, status, report = mount_of(os.fsencode(os.path.abspath(root))), 1, ""
        why = (
            "its list is long, or the store is slow"
            if "://" in root
            else f"it hangs, or is slow: {mount}"
        )
        error = f"error: {root!r} gave no answer for {_PATIENCE_S:.0f} s: {why}\n"
    print(report, end="", flush=True)
    print(error, end="", file=sys.stderr)
    return status


def examine(root: str) -> None:
    """Print how `root` would be read; raises OSError, ValueError or BackendUnavailable."""
    path, call, some = location("DATA", root), f"file(file_root={root!r}", ""
    containers = _containers(path)
    names = [path] if containers else locations(path, None, None)
    backend: Any = registry.load(chosen := registry.choose(None, names))
    remote = backend.remote(retry=0.0) if (url := scheme(names[0])) else None
    if containers:
        call, catalog = containers
    elif os.path.isdir(path):
        found = from_tree(tree := _Sampled(path))
        catalog = _Some(found.root, found.names, found.offsets, found.labels)
        catalog.sidecar["count"] = round(len(found) / tree.share)
        some = "at least " if tree.cut else "about " * (tree.share < 1)
    else:
        catalog = find(remote=remote, file_root=path)
    sizes, count = catalog.sizes, catalog.file_count
    if sizes is None:
        files = np.random.default_rng(0).choice(count, min(count, _SIZED), replace=False)
        with named():
            sizes = np.array([os.stat(it).st_size for it in catalog.file_paths(files)])
    nbytes = int(sizes.mean() * count)
    if containers:  # each is one range, for nothing depends on how many there are
        columns = np.arange(count), np.zeros(count, np.int64), np.full(count, nbytes // count)
        catalog = replace(catalog, ranges=Ranges.of_columns(*columns))
    with backend.open(catalog, remote) as reader:
        choices = dict(reader.choices)
    choices["buffer_bytes"] = machine.buffer_bytes(machine.cache_memory())
    case = what = "objects" if url else "containers" if containers else "files"
    print_row("data", f"{some}{count:,} {what}, {'about ' * (len(sizes) < count)}{nbytes:,} bytes")
    if not url:
        case = "waiting" if choices["lanes"] != machine.lanes(True) else case
        case = "around" if choices["direct"].value else case
        _say_place(backend, catalog)
    for it in backend.devices():
        if it.name == f"{url}://" or not url:
            works = it.kind if url else "works"
            print_row(it.name, f"does not work: {it.problem}" if it.problem else works)
    print_row("reader", f"readers.{call}), {registry.shown(chosen)}, which chooses:")
    for name, choice in choices.items():
        print_row(f"  {name}", str(choice))
    gain, option, page = _ADVICE[case]
    print_row("expect", f"samples/s, compared with DALI's reader: {gain}; decoding is not faster")
    print_row("worth a try", f"{option}: see docs/{page}.md")


def _containers(path: bytes) -> tuple[str, Catalog] | None:
    """Return the call for tars, TFRecord or LMDB files at a path, and their catalog, if any."""
    end, files = b"", [path]
    if os.path.isdir(path):
        ends = dict[bytes, list[bytes]]()
        for name in _Sampled(path).files(b""):
            if not name.endswith((b".idx", b"lock.mdb")):
                end = re.findall(rb"\.[A-Za-z]+$|\d$|$", name)[0]
                end = re.sub(rb"^\d", b"[0-9]", end)  # of train-00003-of-00128
                ends.setdefault(end, []).append(join_path(path, name))
        end, files = max(ends.items(), key=lambda it: len(it[1]), default=(b"", files))
    given = repr(os.fsdecode(files[0]))
    if len(files) > 1:
        given = f"glob.glob({os.fsdecode(os.path.join(glob.escape(path), b'*' + end))!r})"
    with suppress(OSError, ValueError):
        kind = kind_of(os.fsdecode(min(files))).name
        return f"{_CALLS[kind]}{given}", Catalog.from_names(files, range(len(files)))
    return None


def _say_place(backend: Any, catalog: Catalog) -> None:
    print_row("file system", f"{mount_of(os.path.realpath(catalog.file_path(0))) or 'unknown'}")
    try:
        backend(catalog, direct=True).close()
        print_row("O_DIRECT", "works")
    except OSError as error:
        print_row("O_DIRECT", f"does not work: {error.strerror}")
    if (memory := machine.cache_memory()) is not None:
        most = int(machine.KEPT * memory)
        print_row("page cache", f"{memory:,} bytes, of which data may fill {most:,}")


if __name__ == "__main__":
    try:
        examine(sys.argv[1])
    except (BackendUnavailable, OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError) and error.filename == sys.argv[1]
        may_be_url = missing and "://" not in sys.argv[1]
        hint = f"; a URL begins with {'://, '.join(SCHEMES)}://" if may_be_url else ""
        sys.exit(f"error: {error}{hint}")
