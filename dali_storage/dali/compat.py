"""The installed version of DALI, all that depends on it, and the private names in use.

This is the only module that checks the version. `make test` and `make test-dali` compare the
readers with DALI 1.53, 2.0, 2.2, 2.3 and 2.4, bit for bit; `dali.self_test` tries a newer one.
"""

import importlib
import inspect
import json
import pickle
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from types import CodeType
from typing import Any

from ..contract.faces import explained

OLDEST, NEWEST = (1, 53), (2, 4)  # tested

_DISTRIBUTIONS = [
    f"nvidia-dali{it}-cuda{n}0" for it in ("", "-nightly", "-weekly") for n in (11, 12, 13)
]

_INTERNALS = {
    "nvidia.dali.backend:Pipeline": "GetSerializedCheckpoint Outputs reader_meta "
    "RestoreFromSerializedCheckpoint SerializeToProtobuf SetExternalTLInput ShareOutputs",
    "nvidia.dali.backend:OpSpec": "AddArg AddOutput",
    "nvidia.dali.pipeline:Pipeline": "_api_type _batches_to_consume _check_api_type_scope "
    "_checkpoint _enable_checkpointing _first_iter _graph_outputs _group _init_pipeline_backend "
    "_input_callbacks _iterator_data _last_iter _next_op_id _ops _pipe _pipes "
    "_raise_pipeline_required current empty get_batch max_batch_size reset_indices schedule_run "
    "source_desc",
    "nvidia.dali.plugin.base_iterator:_DaliBaseIterator": "_counter _ever_scheduled "
    "_extract_from_reader_and_validate _get_outputs _is_stick_to_shard _last_batch_policy _pipes "
    "_reader_name _schedule_runs _shard_sizes_per_gpu _shard_sizes_per_gpu_initial _shards_id "
    "_shards_num _size _size_no_pad checkpoints reset",
    "nvidia.dali.external_source:_ExternalSourceGroup": "feed get_batch instances parallel "
    "reset_indices source_desc",
    "nvidia.dali.ops:_OpCounter": "id",
    "nvidia.dali.ops:_OperatorInstance": "_op inputs name relation_id spec",
}
_DYNAMIC = {
    "nvidia.dali.experimental.dynamic._ops:Reader": "GetReaderMeta SaveCheckpoint SetupAndRun "
    "_checkpointing_enabled _infer_num_outputs _infer_output_devices _init_backend _init_spec "
    "_last_invocation _lock _max_batch_size _name _op_backend _output_names _pending_state "
    "_pre_call _run next_epoch set_state"
}
_CAPTURE = " _transfer_into _transferred _wire_pipeline"


def _installed() -> str:
    """The installed version of DALI.

    Raises:
        ImportError: DALI is missing, or two packages have overwritten each other's files.
    """
    found = dict[str, dict[str, str]]()  # versions by package, by directory
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            package = distribution(name)
            found.setdefault(str(package.locate_file("")), {})[name] = package.version
    for directory, packages in found.items():
        if len({*packages.values()}) > 1:
            listed = " and ".join(f"{name} {number}" for name, number in packages.items())
            raise ImportError(
                f"dali_storage: {listed} are both in {directory}, and share its nvidia/dali: "
                "uninstall both, then install one of them"
            )
    with explained():
        dali = importlib.import_module("nvidia.dali")
        if not hasattr(dali, "__version__"):  # only an empty directory is left
            raise ModuleNotFoundError(name="nvidia.dali")
    return str(dali.__version__)


def _number(text: str) -> tuple[int, int]:
    """Major and minor version; an unreadable version counts as a future DALI."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (999, 0)


def _shown(number: tuple[int, int]) -> str:
    return ".".join(map(str, number))


VERSION = _installed()
_NUMBER = _number(VERSION)
TESTED = _NUMBER <= NEWEST
REMEDY = f"install DALI {_shown(OLDEST)} to {_shown(NEWEST)}, or a newer dali_storage"

SHUFFLE_BITS = 64 if _NUMBER >= (2, 2) else 32
"""See `OrderOptions.shuffle_bits`."""

SEPARATE: dict[str, Any] = {"contiguous": False} if _NUMBER >= (2, 0) else {}
"""Arguments for a list of tensors without copies. DALI 1.53 always copies."""

AS_STORED: dict[str, Any] = {"adjust_orientation": False} if _NUMBER >= (2, 2) else {}
"""Arguments for image decoders to ignore the orientation in EXIF data. Before 2.2, all do so."""


def has(least: tuple[int, int]) -> bool:
    """Return whether DALI has this version or a newer one."""
    return least <= _NUMBER


def require(what: str, least: tuple[int, int], refusal: type[Exception] = ImportError) -> None:
    """Refuse an older DALI, by an error that names the feature and both versions."""
    if not has(least):
        raise refusal(f"{what} needs DALI {_shown(least)} or newer, found {VERSION}")


def require_dynamic() -> None:
    """Refuse a DALI with another dynamic mode than our readers extend."""
    require("dali_storage.dynamic", (2, 2))
    capture = _CAPTURE if has((2, 3)) else ""
    _look_up({place: names + capture for place, names in _DYNAMIC.items()})
    _look_up({"nvidia.dali.experimental.dynamic:_op_builder": "_scalar_decay"})


def load(data: str | bytes) -> dict[str, Any]:
    """The data of a pipeline in a checkpoint: JSON or, before DALI 2.0, a pickle.

    Raises:
        ValueError: a DALI with the other format made it.
    """
    if (data[:1] in ("{", b"{")) is not has((2, 0)):
        other = "before 2.0" if has((2, 0)) else "2.0 or newer"
        raise ValueError(
            f"the checkpoint was made with DALI {other}, but this is DALI {VERSION}: use the DALI "
            "of the checkpoint; or save readers.state() there, and pass it as resume= here"
        )
    loads: Any = json.loads if has((2, 0)) else pickle.loads  # DALI 1.53 unpickles, too
    return loads(data)  # type: ignore[no-any-return]


def dump(data: dict[str, Any]) -> str | bytes:
    """The inverse of `load()`."""
    return json.dumps(data) if has((2, 0)) else pickle.dumps(data)


def _names(owner: Any) -> set[str]:
    """The attributes of a class or module, and all names used by the methods of a class."""
    found, bases = set(dir(owner)), getattr(owner, "__mro__", ())
    for value in (value for base in bases for value in vars(base).values()):
        function = inspect.unwrap(getattr(value, "fget", None) or getattr(value, "__func__", value))
        found |= _used(getattr(function, "__code__", None))
    return found


def _used(code: Any) -> set[str]:
    """The names of attributes and globals in a function and its nested functions."""
    if not isinstance(code, CodeType):
        return set()
    return set(code.co_names).union(*map(_used, code.co_consts))


def _look_up(internals: Mapping[str, str]) -> None:
    """Refuse a DALI without one of these names: "module:class", and attributes of the class.

    Attributes of instances cannot be listed without an instance. So an attribute counts as known if
    a method of the class uses its name.

    Raises:
        ImportError: names all missing attributes.
    """
    gone = list[str]()
    for place, names in internals.items():
        module, name = place.split(":")
        try:
            known = _names(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError):
            gone.append(f"{module}.{name}")
        else:
            gone += [f"{name}.{each}" for each in names.split() if each not in known]
    if gone:
        what = f"DALI {VERSION} lacks names that dali_storage uses: {', '.join(gone)}"
        raise ImportError(f"{what}; {REMEDY}")


require("dali_storage", OLDEST)
_look_up(_INTERNALS)

# Only after the checks: another DALI may lack these names.
from nvidia.dali import fn  # noqa: E402
from nvidia.dali.ops import _OpCounter  # noqa: E402
from nvidia.dali.pipeline import Pipeline as Pipeline  # noqa: E402

OpCounter = _OpCounter
DALI_FILE = fn.readers.file  # before users may assign our reader to the name
