"""`readers.mix`: samples of several data sets, by weights."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..contract.catalog import Catalog, Tree
from ..contract.options import dali_flag
from ..contract.remote import Remote
from ..formats.files import Files
from ..formats.mixed import MixedFormat
from ..samples.joining import join
from .arguments import Prepared, ReaderArguments, ReaderSpec, makes_reader, spec_of
from .containers import DirectArguments, on_cpu, one_or_all
from .plugs import Common

if TYPE_CHECKING:
    from ..order.sampling.stream import SampleStream


_READERS = (
    *("caffe", "caffe2", "columns", "file", "litdata", "lmdb", "mds", "mxnet"),
    *("npz", "numpy", "parquet", "records", "tfrecord", "webdataset"),
)


@makes_reader()
def mix(
    sources: Mapping[str, Mapping[str, Any]],
    *,
    schedule: Sequence[tuple[int, Mapping[str, Any]]] | None = None,
    labels: str | None = None,
    return_source: bool = False,
    shuffle: bool = True,
    reader: str = "file",
    format_options: Mapping[str, Any] | None = None,
    **given: Unpack[ReaderArguments],
) -> Prepared[Any]:
    """Samples of several data sets, interleaved by weights: exactly, and resumable.

    There is one endless stream of samples for all ranks. After any number of samples, each source
    has had its share to within 1.7 samples. Within a source, samples come in passes: each sample
    once, in another order in every pass. An epoch is a number of samples of the stream, and passes
    continue across epochs. Ranks and batches cut the stream without changing its order, so a state
    resumes on any number of ranks. docs/sampling.md has the details.

    Args:
        sources: the name of each source, with the arguments of the reader that choose its samples,
            for example `{"photos": {"file_root": "/data/photos"}, "scans": {"file_root": ...}}`. A
            source may have `weights` of its own, for its classes or samples, as in `readers.file`.
            With a `reader` of its own, or options such as `ext`, it is decoded by itself:
            `{"reader": "mds", "path": ..., "columns": "image"}`. Sources of several readers need
            equally many outputs of the same types, but integers other than uint8 become the widest
            of their types. The sizes of whole files are looked up when the reader opens.
            The names of the sources and their order belong to the stream.
        weights: a number of at least 0 for each source, by its name: 7 and 3 are the same as 0.7
            and 0.3. None: the numbers of their samples.
        schedule: instead of weights: pairs of a position in the stream and the weights from there
            on, the first at position 0. `set_weights()` changes them while the reader runs.
        epoch_size: number of samples of the stream in an epoch. None: the number of samples of all
            sources. Or "largest": until each source has had one pass; "smallest": until one source
            has.
        labels: "own": each sample keeps the label of its source. "joint": the names of the class
            directories of all sources are numbered, sorted as bytes. None: as "own", with a warning
            if sources share labels. "drop": no labels, of sources of several readers.
        return_source: also return the number of each sample's source.
        shuffle: False: each pass of a source keeps the order of its samples.
        reader: the reader of the sources: "file", "columns", "webdataset", "tfrecord", "mxnet",
            "lmdb", "caffe", "caffe2", "numpy", "npz", "parquet", "mds", "litdata" or "records".
        format_options: the arguments of `reader` for its sources, such as `ext` of webdataset or
            `features` of tfrecord.
        seed: seed of all orders, the same on all ranks; by default 0.

    For all other arguments see `readers.file`; arguments of DALI's order, such as random_shuffle,
    are refused. A state needs pad_last_batch=True.

    Returns:
        The outputs of the reader, with return_index the index among the samples of all sources, and
        with return_source the number of the source: int32, shape (1,). For tfrecord and columns, a
        dict comes first; of several readers, there are only nodes.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable: as the reader; or a weight is wrong.
    """
    common = Common(**given)
    if common.order is not None:
        raise ValueError("order is for one data set: give readers.mix weights instead")
    from ..order.sampling.arguments import data_set_of, ordering_of, refuse_order_of_dali, seed_of
    from ..order.sampling.datasets import mixture_of

    refuse_order_of_dali("readers.mix", vars(common))
    found, is_mixed = _prepared(reader, sources, given, format_options or {})
    labels = _labels(labels, sources)
    openings = {name: each.opening for name, each in found.items()}
    first = next(iter(found.values()))
    mixed: MixedFormat | None = None
    if is_mixed:
        if labels == "joint":
            raise ValueError("labels='joint' is for class directories: give all of them as files")
        on_cpu(common.device, "samples of several formats are put together on the CPU")
        fmts = {name: each.fmt for name, each in openings.items()}
        mixed = MixedFormat(fmts, labels=labels != "drop")
        first = first.returning(one_or_all)
    elif labels == "drop":
        what = "labels='drop' is for sources with a reader or options of their own"
        raise ValueError(f"{what}: leave the output of the labels unused")
    else:
        _require_same_names(reader, sources)

    def find(tree: Callable[[], Tree | None], remote: Remote | None) -> Catalog:
        found: dict[str, Catalog] = {}
        for name, each in openings.items():
            with _noting(name):
                found[name] = each.find(tree, remote)
        if mixed is None:
            catalog = join(found, labels)
        else:
            parts = mixed.parts(found)  # first: to look up the sizes of files takes a while
            catalog = join(mixed.joinable(found, Files(remote)), labels)
            catalog.sidecar["parts"] = parts
            catalog.sidecar["pieces"] = np.array([it.pieces for it in found.values()])
        weights = {name: sources[name].get("weights") for name in found}
        sets = {name: data_set_of(found[name], weights[name]) for name in found}
        catalog.sidecar["data sets"] = sets
        return catalog

    def stream(catalog: Catalog) -> "SampleStream":
        return mixture_of(
            catalog.sidecar.pop("data sets"),
            common.weights,
            schedule,
            seed=seed_of(common.seed),
            epoch_size=common.epoch_size,
            listed=not dali_flag("shuffle", shuffle),
        )

    opening = replace(
        first.opening,
        find=find,
        names=[name for each in openings.values() for name in each.names[:1]],
        fmt=mixed or first.opening.fmt,
        ordering=ordering_of(stream),
    )
    with_source = dali_flag("return_source", return_source)
    return replace(first, opening=opening, common=common, with_source=with_source)


def _require_same_names(reader: str, sources: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse sources of several files with different names of outputs."""
    files = [it["files"] for it in sources.values()] if reader == "columns" else [()]
    first, *others = [[*it] if isinstance(it, Mapping) else None for it in files]
    if any(other != first for other in others):
        raise ValueError("sources must all have the same names of outputs in files, in one order")


def _prepared(
    reader: str,
    sources: Mapping[str, Mapping[str, Any]],
    common: Mapping[str, Any],
    format_options: Mapping[str, Any],
) -> tuple[dict[str, Prepared[Any]], bool]:
    """The reader of each source, and whether any source has a reader or options of its own."""
    if not isinstance(sources, Mapping) or not sources:
        raise TypeError(f"sources must be a mapping of names to arguments, not {sources!r:.80}")
    # Any epoch_size means an order other than DALI's.
    common = {**common, "order": None, "epoch_size": 1}
    _require("format_options", format_options, _formats(_spec("reader", reader)))
    found, is_mixed = {}, False
    for name, given in sources.items():
        if not isinstance(name, str) or not isinstance(given, Mapping):
            raise TypeError(f"sources must be names and arguments, not {name!r}: {given!r:.80}")
        spec = _spec(f"source {name!r}: reader", kind := given.get("reader", reader))
        formats = _formats(spec) - DirectArguments.__annotations__.keys()  # those are for all
        _require(f"source {name!r}", given, spec.samples | formats | {"reader", "weights"})
        is_mixed |= kind != reader or not formats.isdisjoint(given)
        shared = format_options if kind == reader else {}
        merged = {**common, **shared, **given, "weights": None}
        merged.pop("reader", None)
        for each, default in spec.defaults.items():
            if default is Parameter.empty and each not in merged:
                is_shared = kind == reader and each not in spec.samples
                where = "format_options" if is_shared else f"source {name!r}"
                raise ValueError(f"{where} needs {each}, see readers.{spec.name}")
        with _noting(name):
            found[name] = spec.prepare(**merged)
    if len({each.opening.remote for each in found.values()}) > 1:
        urls = ", ".join(repr(name) for name, each in found.items() if each.opening.remote)
        raise ValueError(f"sources must all be URLs or all be paths, but only {urls} has URLs")
    return found, is_mixed


def _spec(argument: str, reader: Any) -> ReaderSpec:
    """The entry of a reader that can be mixed."""
    if reader not in _READERS:
        raise ValueError(f"{argument} must be one of {', '.join(_READERS)}, not {reader!r}")
    return spec_of(getattr(sys.modules[__package__], reader))  # the face imports it


def _formats(spec: ReaderSpec) -> set[str]:
    """The arguments of a reader that all sources may share."""
    return {*spec.defaults} - spec.samples - {*ReaderArguments.__annotations__, "shuffle"}


@contextmanager
def _noting(name: str) -> Iterator[None]:
    """Add the name of a source to an error."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in source {name!r} of readers.mix")
        raise


def _require(where: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse unknown arguments."""
    if odd := [name for name in given if name not in known]:
        names = ", ".join(sorted(known))
        raise TypeError(
            f"{where} has no argument {odd[0]!r}, only {names}; pass others to readers.mix itself"
        )


def _labels(labels: str | None, sources: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The argument, checked."""
    if labels not in (None, "own", "joint", "drop"):
        raise ValueError(f"labels must be 'own', 'joint' or 'drop', not {labels!r}")
    if labels == "joint":
        for name, given in sources.items():
            if given.get("files") is not None or given.get("file_list") is not None:
                raise ValueError(
                    f"labels='joint': source {name!r} has no class names; use a file_root without "
                    "files and file_list"
                )
    return labels
