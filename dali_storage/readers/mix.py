"""`readers.mix`: samples of several data sets, by weights."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from ..contract.catalog import Catalog, Tree
from ..contract.objects import Remote
from ..contract.options import dali_flag
from ..dali import add_reader
from ..reading.opening import Opening
from ..samples.joining import join
from .arguments import ReaderArguments, complete, in_graph, takes_arguments, with_names
from .caffe import caffe, prepare_caffe
from .caffe2 import caffe2, prepare_caffe2
from .columns import columns, prepare_columns
from .files import SampleArguments, file, prepare_file
from .lmdb import lmdb, prepare_lmdb
from .npy import numpy, prepare_numpy
from .recordio import mxnet, prepare_mxnet
from .records import prepare_records, records
from .tfrecord import prepare_tfrecord, tfrecord
from .webdataset import prepare_webdataset, webdataset

if TYPE_CHECKING:
    from ..order.sampling.datasets import DataSet
    from ..order.sampling.stream import SampleStream


class _Kind(NamedTuple):
    """A reader with samples that can be mixed.

    Attributes:
        reader: the reader, which describes the arguments.
        prepare: returns the `Opening` of the reader.
        own: the arguments that choose samples; each source has its own.
    """

    reader: Any
    prepare: Callable[[Mapping[str, Any]], Opening]
    own: Sequence[str]


_KINDS = {
    "caffe": _Kind(caffe, prepare_caffe, ["path", "index_path"]),
    "caffe2": _Kind(caffe2, prepare_caffe2, ["path", "index_path"]),
    "columns": _Kind(columns, prepare_columns, ["files", "file_root", "keys", "labels", "missing"]),
    "file": _Kind(file, prepare_file, [*SampleArguments.__annotations__, "exclude"]),
    "lmdb": _Kind(lmdb, prepare_lmdb, ["path", "index_path", "labels"]),
    "mxnet": _Kind(mxnet, prepare_mxnet, ["path", "index_path"]),
    "numpy": _Kind(numpy, prepare_numpy, ["file_root", "files", "file_list", "file_filter"]),
    "records": _Kind(records, prepare_records, ["files", "offsets", "sizes", "file_ids", "labels"]),
    "tfrecord": _Kind(tfrecord, prepare_tfrecord, ["path", "index_path"]),
    "webdataset": _Kind(webdataset, prepare_webdataset, ["paths", "index_paths"]),
}


@takes_arguments()
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
) -> Any:
    """Samples of several data sets, interleaved by weights: exactly, and resumable.

    There is one endless stream of samples for all ranks. After any number of samples, each source
    has had its share to within 1.7 samples. Within a source, samples come in passes: each sample
    once, in another order in every pass. An epoch is a number of samples of the stream, and passes
    continue across epochs. Ranks and batches cut the stream without changing its order, so a state
    resumes on any number of ranks. docs/sampling.md has the details.

    Args:
        sources: the name of each source, with the arguments of the reader that choose its samples,
            for example `{"photos": {"file_root": "/data/photos"}, "scans": {"path": ...}}`. A
            source may have `weights` of its own, for its classes or samples, as in `readers.file`.
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
            if sources share labels.
        return_source: also return the number of each sample's source.
        shuffle: False: each pass of a source keeps the order of its samples.
        reader: the reader of the sources: "file", "columns", "webdataset", "tfrecord", "mxnet",
            "lmdb", "caffe", "caffe2", "numpy" or "records".
        format_options: the reader's arguments for all sources, such as `ext` of webdataset or
            `features` of tfrecord.
        seed: seed of all orders, the same on all ranks; by default 0.

    For all other arguments see `readers.file`; arguments of DALI's order, such as random_shuffle,
    are refused. A state needs pad_last_batch=True.

    Returns:
        The outputs of the reader, with return_index the index among the samples of all sources, and
        with return_source the number of the source: int32, shape (1,). For tfrecord and columns, a
        dict comes first.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable: as the reader; or a weight is wrong.
    """
    arguments = complete(mix, given, locals())
    if reader not in _KINDS:
        raise ValueError(f"reader must be one of {', '.join(_KINDS)}, not {reader!r}")
    if arguments["order"] is not None:
        raise ValueError("order is for one data set: give readers.mix weights instead")
    from ..order.sampling.arguments import data_set_of, ordering_of, refuse_order_of_dali

    refuse_order_of_dali("readers.mix", arguments)
    openings = _openings(_KINDS[reader], sources, arguments, format_options or {})
    labels, names = _labels(labels, sources), _names(reader, sources, format_options or {})

    def find(tree: Callable[[], Tree | None], remote: Remote | None) -> Catalog:
        found: dict[str, Catalog] = {}
        for name, each in openings.items():
            with _noting(name):
                found[name] = each.find(tree, remote)
        catalog = join(found, labels)
        weights = {name: sources[name].get("weights") for name in found}
        sets = {name: data_set_of(found[name], weights[name]) for name in found}
        catalog.sidecar["data sets"] = sets
        return catalog

    opening = replace(
        next(iter(openings.values())),
        find=find,
        names=[name for each in openings.values() for name in each.names[:1]],
        ordering=ordering_of(lambda it: _stream(it.sidecar.pop("data sets"), arguments)),
    )
    nodes = add_reader(
        opening=opening,
        with_source=dali_flag("return_source", return_source),
        **in_graph(arguments),
    )
    if names is not None:
        return with_names(names, nodes)
    return nodes if len(nodes) > 1 or reader == "columns" else nodes[0]


def _names(
    reader: str, sources: Mapping[str, Mapping[str, Any]], format_options: Mapping[str, Any]
) -> Sequence[str] | None:
    """The names of the outputs, if they are in a dict."""
    if reader == "tfrecord":
        return [*format_options["features"]]
    files = [it["files"] for it in sources.values()] if reader == "columns" else [()]
    first, *others = [[*it] if isinstance(it, Mapping) else None for it in files]
    if any(other != first for other in others):
        raise ValueError("sources must all have the same names of outputs in files, in one order")
    return first


def _openings(
    kind: _Kind,
    sources: Mapping[str, Mapping[str, Any]],
    arguments: Mapping[str, Any],
    format_options: Mapping[str, Any],
) -> dict[str, Opening]:
    """The `Opening` of each source."""
    if not isinstance(sources, Mapping) or not sources:
        raise TypeError(f"sources must be a mapping of names to arguments, not {sources!r:.80}")
    parameters = signature(kind.reader).parameters.values()
    defaults = {it.name: it.default for it in parameters if it.default is not Parameter.empty}
    common = {name: arguments[name] for name in ReaderArguments.__annotations__ if name in defaults}
    # Any value means an order other than DALI's.
    common |= {"weights": None, "order": None, "epoch_size": 1}
    own = {*kind.own}
    formats = {it.name for it in parameters} - own - {*common, "shuffle"}
    _require("format_options", format_options, formats)
    openings = {}
    for name, given in sources.items():
        if not isinstance(name, str) or not isinstance(given, Mapping):
            raise TypeError(f"sources must be names and arguments, not {name!r}: {given!r:.80}")
        _require(f"source {name!r}", given, own | {"weights"})
        merged = {**defaults, **common, **format_options, **given, "weights": None}
        for each in parameters:
            if each.name not in merged:
                where = f"source {name!r}" if each.name in own else "format_options"
                raise ValueError(f"{where} needs {each.name}, see readers.{kind.reader.__name__}")
        with _noting(name):
            openings[name] = kind.prepare(merged)
    if len({each.remote for each in openings.values()}) > 1:
        urls = ", ".join(repr(name) for name, each in openings.items() if each.remote)
        raise ValueError(f"sources must all be URLs or all be paths, but only {urls} has URLs")
    return openings


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
    if labels not in (None, "own", "joint"):
        raise ValueError(f"labels must be 'own' or 'joint', not {labels!r}")
    if labels == "joint":
        for name, given in sources.items():
            if given.get("files") is not None or given.get("file_list") is not None:
                raise ValueError(
                    f"labels='joint': source {name!r} has no class names; use a file_root without "
                    "files and file_list"
                )
    return labels


def _stream(parts: Mapping[str, "DataSet"], arguments: Mapping[str, Any]) -> "SampleStream":
    """The stream of the mixture."""
    from ..order.sampling.arguments import seed_of
    from ..order.sampling.datasets import mixture_of

    return mixture_of(
        parts,
        arguments["weights"],
        arguments["schedule"],
        seed=seed_of(arguments),
        epoch_size=arguments["epoch_size"],
        listed=not dali_flag("shuffle", arguments["shuffle"]),
    )
