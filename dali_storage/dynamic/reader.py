"""Base class of the readers of DALI's dynamic mode.

A reader of `ndd.readers` drives an operator: the reader passes a workspace for every batch, and
requests metadata and checkpoints. `DynamicReader` inherits the reader, and replaces DALI's operator
by a `BatchStream`. So epochs, samples, shards, states and errors are DALI's own.
"""

import contextlib
import inspect
import json
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import nvidia.dali.experimental.dynamic as ndd
from nvidia.dali.experimental.dynamic import _op_builder, _ops

from .. import readers
from ..contract.options import dali_flag, require_integer
from ..dali import add_reader, compat
from ..dali.self_test import require_same_order
from ..dali.source_info import Names
from ..order.resuming.state import read_checkpoint
from ..readers.arguments import (
    DaliArguments,
    IgnoredArguments,
    ReadingArguments,
    refuse_unknown,
    spec_of,
)
from ..saving import positions
from .reading_operator import LockedStream, ReadingOperator

_IN_GRAPHS = DaliArguments.__annotations__.keys() - ReadingArguments.__annotations__
_IN_GRAPHS -= IgnoredArguments.__annotations__.keys()


def _of_all(
    max_batch_size: int | None = None,
    name: str | None = None,
    device: object = "cpu",
    *,
    enable_checkpointing: bool = False,
) -> None:
    """The arguments that readers of dynamic mode have beside those of `readers`."""


class _Signature:
    """The arguments of a constructor: of a function of `readers`, but for those of graphs."""

    def __get__(self, _: object, owner: type["DynamicReader"]) -> inspect.Signature:
        function = getattr(readers, owner._function)
        own, of_reader = (inspect.signature(it).parameters for it in (_of_all, function))
        by_name = [it.replace(kind=it.KEYWORD_ONLY) for it in of_reader.values()]
        shown = [it for it in by_name if it.name not in own.keys() | _IN_GRAPHS]
        return inspect.Signature([*own.values(), *shown])


class DynamicReader(_ops.Reader):  # type: ignore[misc]  # DALI has no types
    """A reader of `ndd.readers` with a choice of storage backend.

    A subclass also has DALI's class of its name as a base, after this one.

    All methods are inherited from DALI's class: `next_epoch()`, also with `capture=True`, calls,
    `get_metadata()`, `get_state()` and `set_state()` for `ndd.checkpoint.Checkpoint`. A reader also
    works in `ndd.pytorch.nodes.Reader(File, ...)`, with the limits of DALI's readers: `Numpy` and
    others need `output_names` there, and `TFRecord` gives only keys. `next_epoch()` after an
    abandoned epoch or a restored state goes on from the position reached, for as many batches as a
    whole epoch has. DALI raises a new error of the same type for a failed call; the first error is
    the `__cause__`.

    Batches are shared with DALI and not copied; their memory is reused after the last reference is
    gone. The reader is closed by `close()`, by `with`, or when it is dropped.
    """

    _checkpointing_enabled: bool  # attributes of DALI's reader
    _max_batch_size: int | None
    _op_backend: Any
    _pending_state: bytes | None

    _init_spec = None
    """DALI's specification of types before the batch is ready. None: wait for the batch."""

    __signature__ = _Signature()
    _function: ClassVar[str]

    def __init_subclass__(cls, *, reader: str | None = None, **more: object) -> None:
        """Give the class the arguments of a function of `readers`, imported at the first use."""
        super().__init_subclass__(**more)
        if reader is not None:
            cls._function = reader

    def __init__(self, *args: object, **given: Any) -> None:
        """Open nothing yet; the samples are found by the first batch or `get_metadata()`.

        As in DALI, a type may be of `ndd`, and numbers a tensor.

        Args:
            *args: `max_batch_size`, `name` and `device`.
            max_batch_size: the batch size for `next_epoch()`; by default set by its first call.
            name: the name in error messages.
            device: must be "cpu"; `data.gpu()` copies a batch.
            seed: as in DALI, -1 by default, a seed like any other.
            enable_checkpointing: enables `get_state()`. As in DALI, True changes the order of
                `shuffle_after_epoch`.
            **given: arguments of the function of `readers`.

        Raises:
            ValueError, TypeError: an argument is wrong; the message has its name and value.
        """
        refuse_unknown(type(self).__name__, given, self.__signature__.parameters)
        arguments = self.__signature__.bind(*args, **given).arguments
        given = {name: _plain(name, value) for name, value in arguments.items()}
        name, max_batch_size = given.pop("name", None), given.pop("max_batch_size", None)
        device, checkpointing = given.pop("device", "cpu"), given.pop("enable_checkpointing", False)
        if not isinstance(name, (str, type(None))):
            raise TypeError(f"name must be a string, not {name!r}")
        device = getattr(device, "device_type", device) or "cpu"
        if device != "cpu":
            raise ValueError(
                f"device must be 'cpu' in dynamic mode, not {device!r}: data.gpu() copies a batch "
                "to the GPU"
            )
        if max_batch_size is not None:
            max_batch_size = _integer(type(self).__name__, "max_batch_size", max_batch_size)
        dali_flag("lazy_init", given.get("lazy_init"))
        if given.get("source_info") is None:  # no graph shows whether anyone asks
            given["source_info"] = False
        opening = spec_of(getattr(readers, self._function)).prepare(**given).opening
        order = opening.order
        super().__init__(
            max_batch_size,
            name,
            num_shards=order.num_shards,
            shard_id=order.shard_id,
            stick_to_shard=order.stick_to_shard,
            enable_checkpointing=dali_flag("enable_checkpointing", checkpointing),
            **_required(super().__init__),
        )
        if "features" in given:  # as in DALI's TFRecord, outputs have names
            self._output_names = tuple(given["features"])
        self._opening = opening
        self._source = LockedStream(self._name, opening)

    def next_epoch(self, *arguments: Any, **named: Any) -> Any:
        """See DALI's class.

        Raises:
            NotImplementedError: `capture=True` before DALI 2.3 (DALI 2.2: `compile=True`).
        """
        if any((*arguments[2:], named.get("capture"), named.get("compile"))):
            what = f"dali_storage.dynamic.readers.{type(self).__name__} with capture=True"
            compat.require(f"{what} (compile=True in DALI 2.2)", (2, 3), NotImplementedError)
        return super().next_epoch(*arguments, **named)

    def set_state(self, state: object) -> None:
        """Resume from a call of `get_state()`; before the first batch, as with DALI's reader.

        Raises:
            TypeError, ValueError: not a state of such a reader; any earlier state stays. Another
                batch size or number of samples is found by the first batch.
            RuntimeError: the reader has begun to read.
        """
        before = self._checkpointing_enabled, self._pending_state
        try:
            super().set_state(state)
            read_checkpoint("not a checkpoint", json.loads(self._pending_state or b""))
        except ValueError as error:
            self._checkpointing_enabled, self._pending_state = before
            what = f"{self._source}: not a state of this reader: {str(state)!r}"
            raise ValueError(f"{what} ({error})") from None

    def close(self) -> None:
        """Wait for calls and running reads; close files and threads. May be called twice.

        Batches requested until now stay valid.
        """
        if self._last_invocation is not None:
            with contextlib.suppress(Exception):  # the result of the call has the error, too
                self._last_invocation.run()
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The methods of DALI's reader call the following.

    def _infer_num_outputs(self, *_: object, **__: object) -> int:
        return len(self._opening.fmt.outputs) + self._opening.fmt.labels

    def _infer_output_devices(self, *_: object, **__: object) -> list[object]:
        return [ndd.Device("cpu")] * self._infer_num_outputs()

    def _init_backend(self, ctx: object, inputs: object, args: object) -> None:
        with self._lock:
            if self._op_backend is not None:
                return
            require_same_order()
            if self._max_batch_size is None:
                self._max_batch_size = 1
            batch_size = _integer(str(self._source), "batch_size", self._max_batch_size)
            self._source.configure(
                batch_size=batch_size, seed=None, checkpointing=self._checkpointing_enabled
            )
            if self._pending_state is not None:
                positions.restore(self._source, json.loads(self._pending_state))
            # Not page-locked: the end of a GPU's read of a batch is unknown.
            self._source.start(device_id=None)
            self._pending_state = None
            names = Names(self._source, self._opening.source_info)
            self._op_backend = ReadingOperator(self._source, batch_size, names)

    def _run(self, *arguments: object, **named: object) -> Any:
        """A call's batch. DALI copies an error from its text, except in synchronous calls."""
        try:
            return super()._run(*arguments, **named)
        except Exception as error:
            kind = _made_of_text(type(error))
            if kind is type(error) or ndd.EvalMode.current().value >= ndd.EvalMode.sync_cpu.value:
                raise
            raise kind(str(error)) from error

    def _wire_pipeline(self, source: object) -> tuple[object, ...]:
        """With `capture=True`, go on in the pipeline that DALI makes from the loop's body."""
        return add_reader(self._name, self._opening, stream=self._source, lazy=True)

    def _transfer_into(self, pipe: object) -> bool:
        self._transferred = True
        return True


def _plain(name: str, value: Any) -> Any:
    """An argument as Python values, also if marked invariant, or of dynamic mode.

    Fractions in arrays are rounded where DALI expects tensors of integers; in lists DALI truncates.
    Numbers out of range, which DALI clips, stay unchanged, to be refused by name.
    """
    value = _op_builder._scalar_decay(value)
    if isinstance(value, (type, float)) or not hasattr(value, "__array__"):
        return value
    array = np.asarray(value)
    if name in ("roi_start", "roi_end", "roi_shape") and array.dtype.kind == "f":
        taken = np.asarray(ndd.tensor(value, dtype=ndd.int32))
        array = np.where(abs(taken - array) <= 0.5, taken, array)
    return array.tolist()


def _made_of_text(error: type[Exception]) -> type[Exception]:
    """The first class of an error's MRO that can be made from a text alone."""
    for kind in error.__mro__[: error.__mro__.index(Exception)]:
        with contextlib.suppress(Exception):
            if isinstance(kind(""), Exception):
                return kind
    return Exception if error is Exception else RuntimeError


def _required(constructor: Callable[..., object]) -> dict[str, None]:
    """The arguments of DALI's constructor without a default, used only by DALI's operator."""
    parameters = inspect.signature(constructor).parameters.values()
    return {each.name: None for each in parameters if each.default is each.empty}


def _integer(where: str, argument: str, value: Any) -> int:
    """A batch size; as in DALI, integers of numpy are accepted."""
    value = value.item() if isinstance(value, np.integer) else value
    require_integer(where, argument, value, range(1, 2**31))
    return value  # type: ignore[no-any-return]
