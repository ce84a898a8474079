"""The common part of all readers: the arguments outside the format, and opening."""

import contextlib
import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict, TypeVar, get_args, get_type_hints

from nvidia.dali import fn
from nvidia.dali.pipeline import do_not_convert

from ..contract import registry
from ..contract._types import PathLike
from ..contract.format import Format
from ..contract.objects import scheme
from ..contract.options import dali_flag, dali_integer
from ..contract.reader import Reader
from ..dali import SHUFFLE_BITS, DataNode, plugs
from ..order import OrderOptions
from ..reading.opening import Find, Opening

_NOT_GIVEN = "checkpointing", "shuffle_bits", "by_container"  # of pipeline, DALI, reader
_ORDER = [field.name for field in fields(OrderOptions) if field.name not in _NOT_GIVEN]

_F = TypeVar("_F", bound=Callable[..., Any])


class ReadingArguments(TypedDict, total=False):
    """Arguments of all readers, also in dynamic mode; `readers.file` describes them."""

    initial_fill: int | None
    lazy_init: bool | None
    num_shards: int | None
    pad_last_batch: bool | None
    prefetch_queue_depth: int | None
    random_shuffle: bool | None
    seed: int | None
    shard_id: int | None
    shuffle_after_epoch: bool | None
    shuffle_after_epoch_seed: int | None
    source_info: bool | None
    stall_after: float | None
    stick_to_shard: bool | None
    backend: str | type[Reader] | None
    backend_options: Mapping[str, Any] | None


class ReaderArguments(ReadingArguments, total=False):
    """Arguments of all readers; `readers.file` describes them."""

    device: str | None
    epoch_size: int | str | None
    name: str | None
    order: Any
    preserve: bool | None
    return_index: bool | None
    pinned: bool | None
    resume: Mapping[str, Any] | None
    on_error: str | None
    check: bool | None
    max_replaced: int | None
    bad_samples: PathLike | None
    weights: Any


class IgnoredArguments(TypedDict, total=False):
    """Arguments of DALI's readers without effect here; `readers.file` explains why."""

    dont_use_mmap: bool | None
    read_ahead: bool | None
    skip_cached_images: bool | None
    tensor_init_bytes: int | None


class DaliArguments(ReaderArguments, IgnoredArguments, total=False):
    """The arguments of all DALI readers."""

    bytes_per_sample_hint: int | Sequence[int]


_DEFAULTS: dict[str, Any] = {  # of all others, flags are False, and the rest is None
    "bytes_per_sample_hint": 0,
    "initial_fill": 1024,
    "num_shards": 1,
    "on_error": "raise",
    "pinned": None,
    "prefetch_queue_depth": 1,
    "shard_id": 0,
    "source_info": None,
    "stall_after": 60.0,
    "tensor_init_bytes": 1 << 20,
}


def takes_arguments(**defaults: Any) -> Callable[[_F], _F]:
    """Show a reader's `**given: Unpack[...]` as arguments, with their defaults.

    Also keep DALI's AutoGraph from rewriting the reader, and give it the schema of DALI's reader of
    its name.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        *own, given = signature.parameters.values()
        shown = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=(_DEFAULTS | defaults).get(
                    name, False if hint in (bool, bool | None) else None
                ),
                annotation=hint,
            )
            for name, hint in sorted(get_type_hints(get_args(given.annotation)[0]).items())
        ]
        reader: Any = do_not_convert(function)
        reader.__signature__ = signature.replace(parameters=[*own, *shown])
        reader.defaults = {each.name: each.default for each in shown}
        with contextlib.suppress(AttributeError):  # a reader that DALI lacks
            reader._schema_name = getattr(fn.readers, function.__name__)._schema_name
        return reader  # type: ignore[no-any-return]

    return decorate


def complete(reader: Any, given: Mapping[str, Any], own: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the given arguments, completed by defaults; refuse unknown arguments.

    `given` is the reader's `**given`. `own`: its `locals()`, if it has other arguments.
    """
    refuse_unknown(reader.__qualname__, given, reader.defaults)
    shown = inspect.signature(reader).parameters.keys() - {"self"}
    return {**reader.defaults, **given, **{name: own[name] for name in shown & own.keys()}}


def refuse_unknown(name: str, given: Iterable[str], known: Container[str]) -> None:
    """Refuse, in Python's words, an argument unknown to the function or class `name`."""
    for argument in given:
        if argument not in known:
            raise TypeError(f"{name}() got an unexpected keyword argument {argument!r}")


def prepare(
    arguments: Mapping[str, Any],
    find: Find,
    fmt: Format,
    *,
    names: Sequence[bytes] = (),
    shuffle: str = "samples",
) -> Opening:
    """Check the arguments of all readers; nothing is opened.

    `names` are the paths and URLs in other arguments. If one is a URL, object-store is the default
    backend. `find` and `fmt` are attributes of the `Opening`. `shuffle` is the argument of the
    readers of containers: "dali" is their order in DALI, "samples" the order of `readers.file`.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
    """
    device, depth = arguments["device"], arguments["prefetch_queue_depth"]
    if device not in (None, "cpu", "gpu"):
        raise ValueError(f"device must be 'cpu' or 'gpu', not {device!r}")
    if dali_flag("skip_cached_images", arguments.get("skip_cached_images", False)):
        raise ValueError(
            "skip_cached_images must be False: the cache of DALI's image decoder is not accessible"
        )
    if shuffle not in ("dali", "samples"):
        raise ValueError(f"shuffle must be 'dali' or 'samples', not {shuffle!r}")
    slots = plugs(arguments, device or "cpu")
    order = {name: arguments[name] for name in _ORDER}
    if own := "ordering" in slots:  # a stream, which all ranks share
        order |= {"seed": int(arguments["seed"] or 0), "stick_to_shard": True}
    backend, reader, options = _storage(arguments, names)
    # None is 1, as in DALI.
    depth = 1 if depth is None else dali_integer("prefetch_queue_depth", depth, bits=32)
    if not 1 <= depth <= 65536:
        raise ValueError(f"prefetch_queue_depth must be from 1 to 65536, not {depth}")
    pinned, source_info = arguments.get("pinned"), arguments["source_info"]
    return Opening(
        find=find,
        reader=reader,
        options=options,
        backend=backend,
        remote=any(map(scheme, names)),
        device=device or "cpu",
        order=OrderOptions(
            **order,
            shuffle_bits=SHUFFLE_BITS,
            by_container=shuffle == "dali" and not own,
        ),
        depth=depth,
        pinned=None if pinned is None else dali_flag("pinned", pinned),
        fmt=fmt,
        names=names,
        source_info=None if source_info is None else dali_flag("source_info", source_info),
        **slots,
    )


def in_graph(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `dali.add_reader()` beside the `Opening`."""
    return {
        "name": arguments["name"],
        "takes_seed": arguments["seed"] is None,
        "preserve": dali_flag("preserve", arguments["preserve"]),
        "lazy": dali_flag("lazy_init", arguments["lazy_init"]),
        "with_index": dali_flag("return_index", arguments["return_index"]),
    }


def with_names(
    names: Iterable[str], nodes: Sequence[DataNode]
) -> dict[str, DataNode] | tuple[Any, ...]:
    """Return a dict of the named nodes; with unnamed ones, a tuple of the dict and the others."""
    named = dict(zip(names, nodes, strict=False))
    more = nodes[len(named) :]
    return (named, *more) if more else named


def _storage(
    arguments: Mapping[str, Any], names: Sequence[bytes]
) -> tuple[str, type[Reader], dict[str, Any]]:
    """Return the backend in messages, its class, and its options including `use_o_direct`."""
    given = arguments["backend_options"] or {}
    if not isinstance(given, Mapping):
        raise TypeError(f"backend_options must be a mapping, not {given!r}")
    backend, options = registry.choose(arguments["backend"], names), dict(given)
    direct = dali_flag("use_o_direct", arguments.get("use_o_direct", False))
    if direct and not options.setdefault("direct", True):
        raise ValueError(
            "use_o_direct=True and backend_options={'direct': False} exclude each other"
        )
    try:
        return registry.shown(backend), registry.configure(backend, options), options
    except TypeError as error:
        if not direct:
            raise
        what = "use_o_direct=True is backend_options={'direct': True}, and"
        raise TypeError(f"{what} {error}; leave out use_o_direct, or use python-file") from None
