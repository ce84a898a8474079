"""The extent map for the legs that need one: the user's, or one made for the run."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bmap_tools import create
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device
from dali_storage import BackendUnavailable
from dali_storage.backends.extents.device import mounted_device
from dali_storage.backends.extents.map import MapTree, files_of, load_map
from dali_storage.samples.discovery import from_tree

from .legs import Leg
from .measure import Result, Results, running
from .workload import BadInputError, Settings, Workload, order_of, prepare, summarize_error

_DEFAULTS = Settings()
_OPTIONS = ("bmap", "uri", "io", "mem", "queues")


def samples_of(bmap: str, settings: Settings) -> Workload:
    """The samples of the user's map. They are read as files if the mapped directory is mounted."""
    try:
        loaded = load_map(bmap)
    except (OSError, ValueError) as error:
        raise BadInputError(f"--bmap {bmap}: {summarize_error(error)}") from error
    extent_map = loaded.map
    if isinstance(mounted_device(extent_map, extent_map.root), Device):
        return prepare(os.fsdecode(extent_map.root), settings)
    try:
        catalog = from_tree(MapTree(extent_map))
    except ValueError as error:
        raise BadInputError(
            f"--bmap {bmap}: {summarize_error(error)}; the mapped file system is not mounted, so "
            f"if {os.fsdecode(extent_map.root)!r} has splits, each split needs its own map"
        ) from error
    sizes = extent_map.sizes[files_of(catalog, loaded)]
    return Workload(settings, None, catalog, sizes, order_of(len(catalog), settings))


@contextmanager
def with_map(workload: Workload, results: Results, legs: Sequence[Leg]) -> Iterator[Workload]:
    """The workload with a map, if some of `legs` that run need one.

    Notes in their results why they cannot run.
    """
    mapped = [leg for leg in running(legs, results) if leg.takes("bmap")]
    if not mapped:
        yield workload
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        made = os.path.join(directory, "bmap.json")
        workload = replace(workload, bmap=workload.settings.bmap or made)
        if workload.root is not None and workload.bmap == made:
            with _reported([results[leg.name] for leg in mapped], ""):
                containers = [it for found in workload.shards.values() for it in found.files]
                root = os.path.commonpath(containers) if containers else workload.root
                create.run(root, made, threads=workload.settings.threads)
        given = {name: getattr(workload.settings, name) for name in _OPTIONS}
        given = {name: value for name, value in given.items() if value != getattr(_DEFAULTS, name)}
        for leg in running(mapped, results):
            options = [f"--{name} {value}" for name, value in given.items() if leg.takes(name)]
            with _reported([results[leg.name]], " ".join(options)):
                leg.check(workload)
        yield workload


@contextmanager
def _reported(results: Sequence[Result], options: str) -> Iterator[None]:
    """Note in `results` why a step failed; if it has `options` of the user, refuse these."""
    try:
        yield
    except (BackendUnavailable, UnsupportedStorage) as reason:
        for result in results:
            result.skipped = str(reason)
    except (OSError, ValueError) as error:
        if options:
            raise BadInputError(f"{options}: {summarize_error(error)}") from error
        for result in results:
            result.failed = summarize_error(error)
