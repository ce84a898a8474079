"""What makes a reader: its common arguments, their checks, and the decorator."""

import inspect
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import (
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

from ..contract import registry
from ..contract._types import PathLike
from ..contract.faces import explained
from ..contract.format import Format
from ..contract.objects import scheme
from ..contract.options import dali_flag, dali_integer, require_integer
from ..contract.reader import Reader
from ..order import OrderOptions
from ..reading.opening import Find, Opening
from .plugs import Common, plugs

DataNode: TypeAlias = Any
Nodes: TypeAlias = tuple[DataNode, ...]

_ORDER = {field.name for field in fields(OrderOptions)}

_CLASSES = "Caffe Caffe2 COCO File MXNet NemoAsr Numpy Sequence TFRecord Webdataset"  # of DALI

if "nvidia.dali" in sys.modules:  # else without DALI, until a pipeline gets a reader
    # Now, because the user may soon put ours in the place of DALI's own reader.
    from ..dali import compat  # noqa: F401

_D = TypeVar("_D")
_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")


class ReadingArguments(TypedDict, total=False):
    """Arguments of all readers, also in dynamic mode; `readers.file` describes them."""

    buffer_bytes: int | None
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
    receipt: str | None
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


@dataclass(frozen=True)
class Prepared(Generic[_R]):
    """A reader with checked arguments; nothing is opened yet.

    Attributes:
        opening: how to open the reader, and how to read.
        common: the arguments that are not in `opening`.
        result: makes the result of the reader from its nodes.
        with_source: the option of `dali.add_reader()`.
        decodes: True if `result` adds operators of DALI.
    """

    opening: Opening
    common: Common = field(default_factory=Common)
    result: Callable[[Nodes], _R] = lambda nodes: cast(Any, nodes)
    with_source: bool = False
    decodes: bool = False

    def returning(self, result: Callable[[Nodes], _D], *, decodes: bool = False) -> "Prepared[_D]":
        """Return the same reader with another result."""
        return Prepared(self.opening, self.common, result, decodes=decodes)

    def in_graph(self) -> dict[str, Any]:
        """Return the arguments of `dali.add_reader()`."""
        common = self.common
        return {
            "name": common.name,
            "opening": self.opening,
            "takes_seed": common.seed is None,
            "preserve": dali_flag("preserve", common.preserve),
            "lazy": dali_flag("lazy_init", common.lazy_init),
            "with_index": dali_flag("return_index", common.return_index),
            "with_source": self.with_source,
        }


class ReaderSpec(NamedTuple):
    """A reader in the table of readers.

    Attributes:
        name: its name in `readers`.
        defaults: the default of each argument, or `inspect.Parameter.empty`.
        prepare: checks the arguments.
        samples: the arguments that choose samples; none if `readers.mix` cannot mix them.
    """

    name: str
    defaults: Mapping[str, Any]
    prepare: Callable[..., Prepared[Any]]
    samples: frozenset[str]


def spec_of(reader: Any) -> ReaderSpec:
    """Return the entry of a function of `readers`."""
    return reader.spec  # type: ignore[no-any-return]


def makes_reader(
    *own: type, samples: Iterable[str] = ()
) -> Callable[[Callable[_P, Prepared[_R]]], Callable[_P, _R]]:
    """Make a reader of a function that prepares one from its arguments.

    The reader has the schema of DALI's reader of its name. The defaults of arguments in `**given`
    are those of `Common` and of the dataclasses `own`. `samples` is an attribute of `ReaderSpec`.
    """
    defaults = {it.name: it.default for each in (Common, *own) for it in fields(each)}

    def decorate(function: Callable[_P, Prepared[_R]]) -> Callable[_P, _R]:
        prepare = _takes_arguments(defaults, function)

        @wraps(prepare)
        def read(*args: _P.args, **given: _P.kwargs) -> _R:
            prepared = prepare(*args, **given)
            from ..dali import add_reader

            return prepared.result(add_reader(**prepared.in_graph()))

        name, signature, reader = function.__name__, inspect.signature(prepare), cast(Any, read)
        (result,) = get_args(signature.return_annotation)
        reader.__signature__ = signature.replace(return_annotation=result)
        reader.__annotations__ = function.__annotations__ | {"return": result}
        shown = {it.name: it.default for it in signature.parameters.values()}
        reader.spec = ReaderSpec(name, shown, prepare, frozenset(samples))
        for its in _CLASSES.split():
            if its.lower() == name.replace("_", ""):
                reader._schema_name = f"readers__{its}"
        return read

    return decorate


def _takes_arguments(defaults: Mapping[str, Any], function: _F) -> _F:
    """Show a function's `**given: Unpack[...]` as arguments with these defaults; refuse others.

    Also keep DALI's AutoGraph from rewriting the function.
    """
    signature = inspect.signature(function)
    *own, given = signature.parameters.values()
    shown = [
        inspect.Parameter(name, given.KEYWORD_ONLY, default=defaults[name], annotation=hint)
        for name, hint in sorted(get_type_hints(get_args(given.annotation)[0]).items())
    ]
    signature = signature.replace(parameters=[*own, *shown])

    @wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        refuse_unknown(function.__qualname__, given, signature.parameters)
        with explained():
            return function(*args, **given)

    # The second one as DALI's `do_not_convert`; DALI need not be installed.
    vars(checked).update(__signature__=signature, autograph_info__={})
    return cast(_F, checked)


def refuse_unknown(name: str, given: Iterable[str], known: Container[str]) -> None:
    """Refuse, in Python's words, an argument unknown to the function or class `name`."""
    for argument in given:
        if argument not in known:
            raise TypeError(f"{name}() got an unexpected keyword argument {argument!r}")


def pick(kind: type[_D], given: Mapping[str, Any]) -> _D:
    """Return the dataclass of the arguments in `given` that are its fields."""
    names: Any = fields(kind)  # type: ignore[arg-type]  # a dataclass
    return kind(**{it.name: given[it.name] for it in names if it.name in given})


def prepare(
    common: Common,
    find: Find,
    fmt: Format,
    *,
    names: Sequence[bytes] = (),
    shuffle: str = "samples",
) -> Prepared[Nodes]:
    """Check the arguments of all readers; nothing is opened.

    `names` are the paths and URLs in other arguments. If one is a URL, object-store is the default
    backend. `find` and `fmt` are attributes of the `Opening`. `shuffle` is the argument of the
    readers of containers: "dali" is their order in DALI, "samples" the order of `readers.file`.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
    """
    device, depth = common.device, common.prefetch_queue_depth
    if device not in (None, "cpu", "gpu"):
        raise ValueError(f"device must be 'cpu' or 'gpu', not {device!r}")
    if dali_flag("skip_cached_images", common.skip_cached_images):
        raise ValueError(
            "skip_cached_images must be False: the cache of DALI's image decoder is not accessible"
        )
    if shuffle not in ("dali", "samples"):
        raise ValueError(f"shuffle must be 'dali' or 'samples', not {shuffle!r}")
    slots = plugs(common, device or "cpu")
    order = {name: value for name, value in vars(common).items() if name in _ORDER}
    if own := "ordering" in slots:  # a stream, which all ranks share
        order |= {"seed": int(common.seed or 0), "stick_to_shard": True}
    backend, reader, options = _storage(common, names)
    # None is 1, as in DALI.
    depth = 1 if depth is None else dali_integer("prefetch_queue_depth", depth, bits=32)
    if not 1 <= depth <= 65536:
        raise ValueError(f"prefetch_queue_depth must be from 1 to 65536, not {depth}")
    source_info = common.source_info
    if common.buffer_bytes is not None:
        require_integer("readers", "buffer_bytes", common.buffer_bytes, range(1, 2**63))
    opening = Opening(
        find=find,
        reader=reader,
        options=options,
        backend=backend,
        remote=any(map(scheme, names)),
        device=device or "cpu",
        order=OrderOptions(
            **order,
            shuffle_bits=_shuffle_bits() if common.shuffle_after_epoch else 64,
            by_container=shuffle == "dali" and not own,
        ),
        depth=depth,
        buffer_bytes=common.buffer_bytes,
        fmt=fmt,
        names=names,
        source_info=None if source_info is None else dali_flag("source_info", source_info),
        **slots,
    )
    return Prepared(opening, common)


def _shuffle_bits() -> int:
    """Return `OrderOptions.shuffle_bits` of the installed DALI; without one, of the newest."""
    try:
        from ..dali.compat import SHUFFLE_BITS
    except ModuleNotFoundError as error:
        if error.name != "nvidia.dali":
            raise
        return 64
    return SHUFFLE_BITS


def _storage(common: Common, names: Sequence[bytes]) -> tuple[str, type[Reader], dict[str, Any]]:
    """Return the backend in messages, its class, and its options including `use_o_direct`."""
    given = common.backend_options or {}
    if not isinstance(given, Mapping):
        raise TypeError(f"backend_options must be a mapping, not {given!r}")
    backend, options = registry.choose(common.backend, names), dict(given)
    direct = dali_flag("use_o_direct", common.use_o_direct)
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
