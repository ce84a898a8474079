"""Loaders of images in class directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Unpack

import numpy as np
from nvidia.dali.pipeline import do_not_convert

from ...contract import registry
from ...contract._types import PathLike
from ...contract.catalog import Catalog, Tree
from ...contract.objects import scheme
from ...contract.remote import remote_of
from ...readers.files import read_files
from ...samples import discovery, listed
from ...samples.finding import root_of
from ...samples.locations import is_index, location
from ...samples.patterns import compile_filters, path_bytes
from ...samples.walk import from_classes
from ..loop.loader import Loader
from ..transforms import presets
from .images import ImagePipeline
from .settings import Options, Settings, takes_options

_SHOWN = 5  # names in an error


@takes_options
def image_folder(
    root: PathLike | None,
    *,
    train: bool,
    classes: Sequence[str] | None = None,
    **options: Unpack[Options],
) -> Loader:
    """Batches `(images, labels)` of the images in a directory of class directories.

    Pixels and labels equal torchvision's `ImageFolder(root)`: labels number the class directories
    from 0, sorted by name (as bytes). Images are files at any depth below a class directory, in
    torchvision's order, with names such as `*.jpg`, `*.jpeg`, `*.png` or `*.webp`, in upper or
    lower case; other files are ignored. docs/loaders.md has the differences.

    * images: float32 and normalised, (N, 3, height, width), or as set by `dtype` and `layout`.
    * labels: int64, (N,); on the same device.

    Args:
        root: the directory, a URL such as `s3://bucket/train`, or an index of either, made by
            `python -m dali_storage index`. Labels of a URL number the classes with images, in the
            order of whole keys: unlike on disk, `a-b/` is before `a/`. None: the samples known to
            the backend, as with an extent map. Unlike a directory, these three have the samples of
            `readers.file`: none is deeper than its class directory.
        train: the defaults for training. If True, the images are shuffled, get
            `presets.IMAGENET_TRAIN`, and come in full batches only; else they keep their order, get
            `presets.IMAGENET_EVAL`, and the last batch may be smaller.
        classes: the required names of the class directories, in their order. None: any.
        **options: help(dali_storage.loaders.datasets.settings.Settings) explains them.

    Returns:
        The loader, which opens the storage at its first use. Its `classes` are the names.

    Raises:
        ValueError: an option has a wrong value; there are no class directories, or other ones than
            `classes`. At the first use: there are no images, or a class has none.
        TypeError: an option is unknown or of a wrong type.
        OSError: the directory cannot be read.
        BackendUnavailable: device="gpu", and there is no GPU; or as `readers.file`.
    """
    settings, where, find = Settings(**options), _shown_root(root), None
    if root is not None and scheme(path_bytes("root", root)):
        check, names = _when_listed(root, settings, classes)
    else:
        known = _class_names_of_map(settings) if root is None else class_names(root)
        if classes is not None:
            require_classes(known, list(classes), f"class directories of {where}")
        check, names = partial(require_images, known), lambda: known
        where += f", {len(known)} classes"
        if root is not None and not is_index(root):
            find = partial(_find, discovery.Directory(root).root, known)
    return ImagePipeline(
        read=partial(do_not_convert(read_files), find, file_root=root),
        settings=settings,
        train=train,
        preset=presets.IMAGENET_TRAIN if train else presets.IMAGENET_EVAL,
        check=check,
    ).loader(
        classes=names,
        describe=lambda: f"image_folder of {where}",
        roots=[] if root is None else [location("root", root_of(root))],
    )


def _find(root: bytes, classes: tuple[str, ...], *_: object) -> Catalog:
    """The images of a directory; see `Opening.find`."""
    choose = compile_filters("", discovery.IMAGE_FILTERS, case_sensitive=False)
    found = from_classes(root, map(os.fsencode, classes), choose)
    require_images(classes, found)
    return found


def _when_listed(
    root: PathLike, settings: Settings, expected: Sequence[str] | None
) -> tuple[Callable[[Catalog], None], Callable[[], tuple[str, ...]]]:
    """A check of the samples below a URL, which finds their classes, and a getter of these."""
    known: list[tuple[str, ...]] = []

    def check(catalog: Catalog) -> None:
        names = indexed_classes(catalog)
        if expected is not None:
            require_classes(names, list(expected), f"class directories of {_shown_root(root)}")
        known[:] = [names]

    def classes() -> tuple[str, ...]:
        if not known:
            options = settings.backend_options or {}
            backend = registry.choose(settings.backend, [location("root", root)])
            remote = remote_of(registry.configure(backend, options), **options)
            check(listed.from_store(remote, root))
        return known[0]

    return check, classes


def class_names(root: PathLike) -> tuple[str, ...]:
    """The names of the class directories, in the order of their labels; at least one."""
    if is_index(root):
        return indexed_classes(listed.from_index(root))
    return _names(discovery.Directory(root), _shown_root(root))


def _class_names_of_map(settings: Settings) -> tuple[str, ...]:
    options = settings.backend_options or {}
    backend = registry.choose(settings.backend, ())
    tree = registry.configure(backend, options).tree(**options)
    if tree is None:
        raise ValueError(
            f"root=None, but {registry.shown(backend)} does not know its samples: give root"
        )
    return _names(tree, _shown_root(None))


def _names(tree: Tree, root: str) -> tuple[str, ...]:
    names = tuple(map(os.fsdecode, sorted(tree.directories())))
    if not names:
        raise ValueError(f"{root} has no class directories: expected root/class/image")
    return names


def indexed_classes(catalog: Catalog) -> tuple[str, ...]:
    """The names of the class directories of a listed tree, by its samples.

    Raises:
        ValueError: a label has no samples, so the name of its directory is unknown.
    """
    firsts = np.flatnonzero(np.diff(catalog.labels, prepend=-1))
    files = [catalog.file_name(first) for first in firsts.tolist()]
    if alone := [os.fsdecode(name) for name in files if b"/" not in name]:
        what = f"{shown(alone)} directly in {_shown_root(catalog.root)}: not in a class directory"
        raise ValueError(f"{what}; move them, or use readers.file, where each is a class")
    names = [name.partition(b"/")[0] for name in files]
    if (catalog.labels[firsts] != np.arange(firsts.size)).any():
        what = f"no images in {catalog.labels[-1] + 1 - firsts.size} class directories"
        root = _shown_root(catalog.root)
        raise ValueError(f"{what} of {root}: remove or fill them, and rebuild the index")
    return tuple(map(os.fsdecode, names))


def require_classes(found: Sequence[str], expected: Sequence[str], what: str) -> None:
    """Raise ValueError unless both are the same; the error begins with the last argument."""
    there, wanted = set(found), set(expected)
    missing = [name for name in expected if name not in there]
    extra = [name for name in found if name not in wanted]
    if missing or extra:
        faults = [f"missing: {shown(missing)}"] * bool(missing)
        faults += [f"not expected: {shown(extra)}"] * bool(extra)
        raise ValueError(f"{what}: {'; '.join(faults)}")
    if list(found) != list(expected):
        raise ValueError(
            f"classes must be in the order of the labels, which is {shown(found)}: the names "
            "sorted as bytes"
        )


def shown(names: Sequence[str]) -> str:
    """The first few names, for an error."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _shown_root(root: PathLike | None) -> str:
    """A directory, for an error."""
    return "the map" if root is None else repr(os.fsdecode(root))


def require_images(names: tuple[str, ...], catalog: Catalog) -> None:
    """Raise ValueError if a class has no image."""
    counts = np.bincount(catalog.labels, minlength=len(names))
    empty = [names[label] for label in np.flatnonzero(counts == 0)]
    if empty:
        raise ValueError(
            f"no images in the class directories {shown(empty)} of {_shown_root(catalog.root)}: "
            f"only files matching {', '.join(discovery.IMAGE_FILTERS)} are read. Remove "
            "the directories, or convert the images"
        )
