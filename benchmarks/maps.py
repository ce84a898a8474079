"""The extent map that some legs go by: the user's, or one that is made for the run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from bmap_tools import create
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device
from dali_storage import registry
from dali_storage.backends.extents import device as _devices
from dali_storage.backends.extents import map as _maps
from dali_storage.discovery import from_tree
from dali_storage.errors import BackendUnavailable

from .legs import MAPPED, Extents
from .measure import Result, Results
from .work import BadInputError, Settings, Work, explain, order_of, prepare


def samples_of(bmap: str, settings: Settings) -> Work:
    """The samples of the user's map, as files where the directory that was mapped is there.

    Raises:
        BadInputError: the map cannot be read, or there are no samples.
    """
    try:
        loaded = _maps.load_map(bmap)
        mapped = loaded.map
    except (OSError, ValueError) as error:
        raise BadInputError(f"--bmap {bmap}: {explain(error)}") from error
    if isinstance(_devices.mounted_device(mapped, mapped.root), Device):
        return prepare(os.fsdecode(mapped.root), settings)
    try:
        catalog = from_tree(_maps.MapTree(mapped))
    except ValueError as error:
        raise BadInputError(
            f"--bmap {bmap}: {explain(error)}; what it is of is not mounted, so the splits of "
            f"{os.fsdecode(mapped.root)!r}, if there are any, need a map each"
        ) from error
    sizes = mapped.sizes[_maps.files_of(catalog, loaded)]
    return Work(settings, None, catalog, sizes, order_of(len(catalog), settings))


@contextmanager
def mapped(work: Work, results: Results) -> Iterator[Work]:
    """The work with a map, if legs that need one are to run; why they cannot, in `results`.

    Raises:
        BadInputError: the user's map, device or option does not fit.
    """
    legs = {
        leg.name: leg.extents
        for leg in MAPPED
        if leg.extents and leg.name in results and results[leg.name].runs
    }
    if not legs:
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        made = os.path.join(directory, "bmap.json")
        work = replace(work, bmap=work.settings.bmap or made)
        if work.root is not None and work.bmap == made:
            make = partial(create.run, work.root, made, threads=work.settings.threads)
            _attempt(make, [results[name] for name in legs], "")
        for name, extents in legs.items():
            if results[name].runs:
                _attempt(partial(_open, extents, work), [results[name]], _given(extents, work))
        yield work


def _open(extents: Extents, work: Work) -> None:
    registry.configure(extents.backend, extents.options(work)).open(work.catalog).close()


def _given(extents: Extents, work: Work) -> str:
    """What the command line says about the options of a backend."""
    given = {name: getattr(work.settings, name) for name in ("bmap", "uri", "io")}
    ours = extents.options(work)
    return " ".join(f"--{name} {value}" for name, value in given.items() if value and name in ours)


def _attempt(step: Callable[[], object], results: Sequence[Result], options: str) -> None:
    """Do what the legs of `results` cannot run without."""
    try:
        step()
    except (BackendUnavailable, UnsupportedStorage) as reason:
        for result in results:
            result.skipped = str(reason)
    except (OSError, ValueError) as error:
        if options:
            raise BadInputError(f"{options}: {explain(error)}") from error
        for result in results:
            result.failed = explain(error)
