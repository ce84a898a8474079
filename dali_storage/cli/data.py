"""`python -m dali_storage DATA`: how a directory, URL, index or containers would be read here.

Nothing is guessed: the reader's own functions find the samples and open their backend, which says
what it chose, and why. Of a large directory, some classes are listed, and some files are sized.
"""

import glob
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from bmap_tools.console import output, print_row

from ..contract import registry
from ..contract.catalog import Catalog, join_path, open_regular
from ..contract.devices import devices_of
from ..contract.errors import BackendUnavailable, named
from ..contract.faces import explained
from ..contract.objects import SCHEMES, scheme
from ..contract.ranges import Ranges
from ..contract.remote import remote_of
from ..formats.files import compressed
from ..observing.kernel import mount_of
from ..reading.buffers import buffer_bytes
from ..runtime import machine
from ..samples.discovery import Directory, from_tree
from ..samples.finding import find, locations
from ..samples.locations import location
from . import shards
from .index import kind_of

_PATIENCE_S, _CLASSES, _ENTRIES, _SIZED = 30.0, 30, 1_000_000, 500
_CALLS = {
    "tar": "webdataset(ext=..., paths=",
    "TFRecord": "tfrecord(path=",
    "LMDB": "lmdb(path=",
    "Parquet": "parquet(paths=",
}
_ARRAYS = {"*.npy": "numpy(", "*.npz": "npz(members=..., "}
_ADVICE = {  # by what is read, and from where: the gain over DALI's reader; an option; its page
    "objects": ("twice as many", "backend_options={'cache': '/a/local/disk'}", "object-store"),
    "around": ("up to 3 times as many (containers: 1.5 times)", "backend='block'", "extent-maps"),
    "far files": ("2 to 4 times as many if uncached reads wait; fewer on more ranks", "", "slow"),
    "far containers": ("1.1 to 2.3 times as many; cached: half", "s3:// of a bucket", "slow"),
    "files": ("as many from disk, 1.2 times as many if cached", "backend='memory'", "backends"),
    "containers": ("half as many if cached", "backend_options={'io': 'mmap'}", "containers"),
    "arrays": ("not measured for arrays", "backend='memory'", "backends"),
}
_MEANS = {
    "lanes": " threads, a batch each",
    "copying_lanes": " of the lanes at once may copy from the page cache",
    "buffer_bytes": " bytes of batches read ahead",
}
_MOUNTS = {  # by the type of the mount: an option
    "fuse.rclone": "mount it with --transfers 64, or read s3:// without a mount",
    "fuse.s3fs": "read s3:// without a mount",
    "fuse.sshfs": "backend_options={'direct': True}",
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
        self.share = len(some) / len(names) if names else 1.0
        return some


def main(roots: Sequence[str]) -> int:
    """Print what is found; errors go to stderr. Returns the exit status."""
    root = roots[0]
    # A child looks: on a file system that hangs, a call may never return, not even when killed.
    # It has pipes of its own, for the end of ours must not depend on it.
    command, pipe = [sys.executable, "-m", __name__, *roots], subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace")
    try:
        report, error = child.communicate(timeout=_PATIENCE_S)
        status = child.returncode
    except subprocess.TimeoutExpired:
        child.kill()
        mount, status, report = mount_of(os.fsencode(os.path.abspath(root))), 1, ""
        why = f"it hangs, or is slow: {mount}"
        why = "its list is long, or the store is slow" if "://" in root else why
        error = f"error: {root!r} gave no answer for {_PATIENCE_S:.0f} s: {why}\n"
    with output():
        print(report, end="")
    print(error, end="", file=sys.stderr)
    return status


def examine(*roots: str) -> None:
    """Print how DATA would be read; raises OSError, ValueError or BackendUnavailable."""
    paths = [location("DATA", root) for root in roots]
    path, call, some = paths[0], f"file(file_root={roots[0]!r}", ""
    containers = _containers(paths)
    names = [path] if containers else locations(path, None, None)
    backend: Any = registry.load(chosen := registry.choose(None, names))
    remote = remote_of(backend, retry=0.0) if (url := scheme(names[0])) else None
    if url and (others := shards.find(roots[0], remote)):
        print_row("data", f"shards by {others.writer}, which are not counted")
        print_row("reader", f"readers.{others.call})")
        return
    if containers:
        call, catalog = containers
    elif os.path.isdir(path):
        call, some, catalog = _files(path, call)
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
    choices["buffer_bytes"] = buffer_bytes(machine.cache_memory())
    what = "objects" if url else "containers" if containers else "files"
    print_row("data", f"{some}{count:,} {what}, {'about ' * (len(sizes) < count)}{nbytes:,} bytes")
    mount = "" if url else _say_place(backend, catalog)
    for it in devices_of(backend):
        if it.name == f"{url}://" or not url:
            works = it.kind if url else "works"
            print_row(it.name, f"does not work: {it.problem}" if it.problem else works)
    print_row("reader", f"readers.{call}), {registry.shown(chosen)}, which chooses:")
    for name, choice in choices.items():
        print_row(f"  {name}", f"{choice.value}{_MEANS.get(name, '')} ({choice.why})")
    gain, option, page = _ADVICE[what if url else _case(backend, call, choices, what)]
    print_row("expect", f"samples/s, compared with DALI's reader: {gain}; decoding is not faster")
    print_row("worth a try", f"{option or _MOUNTS.get(mount, 'nothing more')}: see docs/{page}.md")


def call_of(paths: Sequence[bytes]) -> tuple[str, list[str]]:
    """Return the name of the reader for DATA, and the files if they are containers or arrays."""
    found = _containers(paths)
    if not found and os.path.isdir(paths[0]):
        with suppress(ValueError):
            call, _, catalog = _files(paths[0], "file(")
            found = call, catalog
    call, catalog = found or ("file", Catalog.from_names([], []))
    if (name := call.partition("(")[0]) == "file":
        return name, []
    return name, [*map(os.fsdecode, catalog.file_paths(np.arange(catalog.file_count)))]


def _files(path: bytes, call: str) -> tuple[str, str, Catalog]:
    """Return the call for files in class directories, or for arrays; "about"; their catalog."""
    try:
        found = from_tree(tree := _Sampled(path))
    except ValueError:
        with explained():
            from ..formats.npy import header
        for pattern, reader in _ARRAYS.items():
            with suppress(ValueError):
                return reader + call[5:], "", header.find(path, None, None, pattern, None)
        raise
    catalog = _repeated(found, round(len(found) / tree.share))
    return call, "at least " if tree.cut else "about " * (tree.share < 1), catalog


def _repeated(some: Catalog, count: int) -> Catalog:
    """Return `count` files, the same ones again and again: a backend chooses as for all files."""
    names = bytes(some.names) * -(-count // len(some))
    offsets = np.append(0, np.cumsum(np.resize(np.diff(some.offsets), count)))
    return Catalog(some.root, names, offsets, np.resize(some.labels, count))


def _case(backend: Any, call: str, choices: Mapping[str, Any], what: str) -> str:
    """Return the key of `_ADVICE` for files or containers on disk."""
    far = "far " * (choices["lanes"].value != backend.lanes)
    case = "around" if choices["direct"].value else far + what
    return "arrays" if call.startswith(("numpy(", "npz(")) else case


def _containers(paths: Sequence[bytes]) -> tuple[str, Catalog] | None:
    """Return the call for containers, and their catalog, if these are any."""
    if paths[1:]:
        return _alike(paths)
    path, end, files = paths[0], b"", [*paths]
    if os.path.isdir(path):
        if found := shards.find(os.fsdecode(path)):
            names = [*map(os.fsencode, found.files)]
            return found.call, Catalog.from_names(names, range(len(names)))
        ends = dict[bytes, list[bytes]]()
        for name in _Sampled(path).files(b""):
            if not name.endswith((b".idx", b"lock.mdb")):
                end = re.findall(rb"\.[A-Za-z]+$|\d$|$", name)[0]
                end = re.sub(rb"^\d", b"[0-9]", end)  # of train-00003-of-00128
                ends.setdefault(end, []).append(join_path(path, name))
        end, files = max(ends.items(), key=lambda it: len(it[1]), default=(b"", files))
        if len(files) <= _classes(path):  # a stray one beside them
            return None
    given = repr(os.fsdecode(files[0]))
    if len(files) > 1:
        given = f"glob.glob({os.fsdecode(os.path.join(glob.escape(path), b'*' + end))!r})"
    with suppress(OSError), open_regular(min(files)) as first:
        try:
            kind = kind_of(os.fsdecode(min(files))).name
            return f"{_CALLS[kind]}{given}", Catalog.from_names(files, range(len(files)))
        except ValueError:
            if compressed(first.read(8)):
                raise
    return None


def _alike(paths: Sequence[bytes]) -> tuple[str, Catalog]:
    """Return the call for several containers of one kind, and their catalog."""
    kind, *others = dict.fromkeys(kind_of(os.fsdecode(path)).name for path in paths)
    if others:
        what = f"{kind} and {' and '.join(others)} files have different readers"
        raise ValueError(f"{what}; give files of one kind")
    given = f"[{os.fsdecode(paths[0])!r}, ...]"
    return f"{_CALLS[kind]}{given}", Catalog.from_names(paths, range(len(paths)))


def _classes(path: bytes) -> float:
    """The number of class directories with samples."""
    with suppress(ValueError):
        return len(np.unique(from_tree(tree := _Sampled(path)).labels)) / tree.share
    return 0


def _say_place(backend: Any, catalog: Catalog) -> str:
    """Print where the files are; return the type of the mount."""
    mount = mount_of(os.path.realpath(catalog.file_path(0)))
    print_row("file system", f"{mount or 'unknown'}")
    try:
        backend(catalog, direct=True).close()
        print_row("O_DIRECT", "works")
    except OSError as error:
        print_row("O_DIRECT", f"does not work: {error.strerror}")
    if (memory := machine.cache_memory()) is not None:
        most = machine.cacheable(memory)
        print_row("page cache", f"{memory:,} bytes, of which data may fill {most:,}")
    return mount.kind if mount else ""


if __name__ == "__main__":
    try:
        examine(*sys.argv[1:])
    except (BackendUnavailable, OSError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError) and error.filename == sys.argv[1]
        may_be_url = missing and "://" not in sys.argv[1]
        hint = f"; a URL begins with {'://, '.join(SCHEMES)}://" if may_be_url else ""
        sys.exit(f"error: {error}{hint}")
